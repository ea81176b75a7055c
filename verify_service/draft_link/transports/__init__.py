"""How records travel between the draft link and one draft service."""
