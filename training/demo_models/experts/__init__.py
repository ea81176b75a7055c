"""The demo mixture of experts and its EAGLE-3 head."""
