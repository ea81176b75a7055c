"""What one tenant gets beside another."""
