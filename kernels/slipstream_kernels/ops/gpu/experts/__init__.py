"""Layers of experts on a GPU: which experts a row has, their products, and the sum of what they say."""
