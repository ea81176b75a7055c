"""What several stages share, and the making of the demo models with them."""
