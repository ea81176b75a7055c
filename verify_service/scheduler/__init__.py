"""Who runs in the next step, with how many rows, and whose share that is."""
