"""Attached draft services: who drafts for whom, and what is exchanged with each."""
