"""Networks that draft, and what a round asks of them."""
