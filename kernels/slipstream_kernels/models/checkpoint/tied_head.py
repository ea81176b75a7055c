"""Whether a model whose config ties its head to the embedding has a head of its own after all.

Many such checkpoints store `lm_head.weight` too. Mostly it is a copy.
"""

from __future__ import annotations

from pathlib import Path

import torch

from slipstream_kernels.models.checkpoint.weight_file import FLOATS, open_weights, weight_files

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_PACKED_HEADS = ("lm_head.weight_packed", "lm_head.qweight")
"""What a head's weight is called where words hold several of its elements; the embedding's is never there."""
_ROWS = 8192
"""Compared at a time."""


def has_own_head(folder: Path, prefix: str = "") -> bool:
    """Whether `lm_head.weight` is there and differs from the embedding, both as bfloat16. Raises CheckpointError.

    prefix: of the names that the folder has. A folder without weights in safetensors has none.
    """
    if not any((folder / name).exists() for name in ("model.safetensors", "model.safetensors.index.json")):
        return False
    places: dict[str, Path] = {}
    for path in weight_files(folder):
        with open_weights(path) as file:
            if any(prefix + name in file.names for name in _PACKED_HEADS):
                return True
            places.update({name: path for name in (EMBEDDING, HEAD) if prefix + name in file.names})
    return len(places) == 2 and not _are_equal(places, prefix)


def _are_equal(places: dict[str, Path], prefix: str) -> bool:
    embedding, head = prefix + EMBEDDING, prefix + HEAD
    with open_weights(places[EMBEDDING]) as first, open_weights(places[HEAD]) as second:
        shape = first.shape(embedding)
        if len(shape) != 2 or shape != second.shape(head):
            return False
        if not {first.dtype(embedding), second.dtype(head)} <= FLOATS.keys():
            return False
        pairs = zip(first.read(embedding).split(_ROWS), second.read(head).split(_ROWS), strict=True)
        return all(torch.equal(_bits(left), _bits(right)) for left, right in pairs)


def _bits(rows: torch.Tensor) -> torch.Tensor:
    return rows.to(torch.bfloat16).view(torch.int16)
