"""What drafts for the verify services, as the gateway waits for it, shows it and steers it."""
