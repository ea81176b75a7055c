"""Draft heads that read the target's hidden states: checkpoints, their conventions, their computation."""
