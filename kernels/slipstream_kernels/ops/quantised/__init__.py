"""Quantised weights on a CPU: how they are packed, and how they are decoded in registers."""
