"""Stages whose options are many, a module each; `training.cli` gathers them."""
