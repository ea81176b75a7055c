"""Pages of the KV cache: the radix tree of those that prompts share, and the table that kernels read."""
