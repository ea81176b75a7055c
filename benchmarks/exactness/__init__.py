"""Answers through real services on a CPU, whatever drafts for them, against plain decoding's."""
