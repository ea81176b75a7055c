"""Rounds with an EAGLE-3 head, and what they are worth on real text."""
