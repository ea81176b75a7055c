"""Proposers that draft on a GPU."""
