"""Causal language models read from Hugging Face folders."""
