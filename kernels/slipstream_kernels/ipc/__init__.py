"""Memory and wake-ups that two processes share."""
