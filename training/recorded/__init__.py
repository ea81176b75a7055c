"""Recorded conversations and texts as token sequences, written as the target's gateway would write them."""
