"""`LLM`: generation from Python, without a server of one's own."""
