"""Rounds of drafting: plans, buffers, graphs, and the handles of their trees."""
