"""The stage `evaluate`: what a drafter is worth in the real engine, on prompts that it was not trained on."""
