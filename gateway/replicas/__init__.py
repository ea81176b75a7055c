"""The verify services behind the gateway, and the streams that move among them."""
