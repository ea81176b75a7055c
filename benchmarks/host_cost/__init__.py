"""What the host does for a round of speculation, measured on a device that computes nothing."""
