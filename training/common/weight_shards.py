"""Weights of a model, split over files."""

from torch import Tensor


def shards(weights: dict[str, Tensor], limit: int) -> list[dict[str, Tensor]]:
    """Weights in order, split so that no shard exceeds `limit` bytes (one tensor is never split)."""
    split: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, value in weights.items():
        if split[-1] and size + value.nbytes > limit:
            split.append({})
            size = 0
        split[-1][name] = value
        size += value.nbytes
    return split
