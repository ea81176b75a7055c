"""Proposers on the same prompts, by real services: which accept most, which serve best."""
