"""Models on the CPU."""
