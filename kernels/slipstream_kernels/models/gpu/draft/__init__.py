"""Drafting on a GPU: text, levels of a tree and the choice of its nodes as one CUDA graph a round."""
