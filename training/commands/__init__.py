"""Stages, a module each; `training.cli` gathers them."""
