"""One client request under way."""
