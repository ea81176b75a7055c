"""Structured answers and forced calls through real services, whatever drafts for them, against plain decoding's."""
