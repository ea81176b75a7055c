"""The vocabulary that all rooms speak."""
