"""Keys and values of 8 bits."""
