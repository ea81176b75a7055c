"""One model on several GPUs: the rank that drives the others, and these."""
