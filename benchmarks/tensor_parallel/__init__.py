"""One model on several GPUs against one: the same answers, and how fast."""
