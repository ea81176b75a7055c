"""Checkpoints of quantised weights: what config.json says of them, and which tensors hold a weight."""
