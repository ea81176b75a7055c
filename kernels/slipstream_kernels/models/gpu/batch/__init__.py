"""What a pass consists of: rows, their plan on host and device, and tables of requests."""
