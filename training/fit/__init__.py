"""Training of drafters on what the target was thinking when it gave its answers."""
