"""Answers of the GPU engine, whatever drafts for them, against plain decoding's."""
