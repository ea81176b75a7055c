"""Who may call, and what is told of each call."""
