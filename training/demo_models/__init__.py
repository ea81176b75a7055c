"""Makes the demonstration models: a small chat target and the draft model distilled from it."""
