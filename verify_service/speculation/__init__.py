"""Policy without I/O: how much to draft, and what of it to verify."""
