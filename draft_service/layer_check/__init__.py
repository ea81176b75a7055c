"""Warns of heads that read hidden states one layer off."""
