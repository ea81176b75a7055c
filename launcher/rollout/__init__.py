"""A new draft service takes over from the old ones, or is sent back."""
