"""What the target was thinking: hidden states of its boundaries for every token of its answers."""
