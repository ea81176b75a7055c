"""Maps from a head's own vocabulary to the target's, whatever form they are stored in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from draft_service.heads.pickled import load_pickled
from slipstream_kernels.models.checkpoint.model_config import CheckpointError


def target_ids(
    d2t: torch.Tensor | None, t2d: torch.Tensor | None, *, draft_size: int, target_size: int
) -> torch.Tensor | None:
    """The target's id of each entry of the head's vocabulary, int64 [draft_size]; None where both are the same.

    d2t: offsets [draft_size], id = entry + d2t[entry]. t2d: mask [target_size] of the ids that are among them; it is no
    inverse index. Raises CheckpointError for maps that are missing, or do not fit one another or the sizes.
    """
    if d2t is None and t2d is None:
        if draft_size != target_size:
            raise CheckpointError(f"d2t is missing: the head scores {draft_size} tokens of {target_size}")
        return None
    mask = None
    if t2d is not None:
        if tuple(t2d.shape) != (target_size,):
            raise CheckpointError(f"t2d has shape {list(t2d.shape)}, expected {[target_size]}")
        mask = t2d.bool()
    if d2t is None:
        assert mask is not None
        ids = mask.nonzero().flatten()
        if len(ids) != draft_size:
            raise CheckpointError(f"t2d marks {len(ids)} tokens, the head scores {draft_size}")
        return ids
    if tuple(d2t.shape) != (draft_size,) or d2t.is_floating_point():
        raise CheckpointError(f"d2t has shape {list(d2t.shape)} and type {d2t.dtype}, expected {[draft_size]} integers")
    ids = torch.arange(draft_size) + d2t.to(torch.int64)
    check_ids(ids, target_size, "d2t")
    if mask is not None and (int(mask.sum()) != draft_size or not bool(mask[ids].all())):
        raise CheckpointError("d2t and t2d name different tokens")
    return None if draft_size == target_size and bool((ids == torch.arange(draft_size)).all()) else ids


def token_map(path: Path, target_size: int) -> torch.Tensor:
    """A file of target ids by frequency, as FR-Spec's freq_*.pt: a list or tensor saved by torch; int64 [entries].

    FR-Spec: arXiv 2502.14856. Raises CheckpointError.
    """
    return indices(load_pickled(path), target_size, str(path))


def indices(content: Any, target_size: int, source: str) -> torch.Tensor:
    """A list or tensor of target ids as int64 [entries]. Raises CheckpointError, which names the source."""
    try:
        ids = torch.as_tensor(content)
    except (TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{source}: not a list of token ids") from error
    if ids.ndim != 1 or not len(ids) or ids.is_floating_point() or ids.dtype == torch.bool:
        raise CheckpointError(f"{source}: not a list of token ids")
    ids = ids.to(torch.int64)
    check_ids(ids, target_size, source)
    return ids


def spread(scores: torch.Tensor, ids: torch.Tensor | None, target_size: int) -> torch.Tensor:
    """Scores [rows, entries] of a head as those of the target's vocabulary, [rows, target_size].

    ids: the target's id of each entry, None where both are the same. Minus infinity for tokens that are not scored.
    """
    if ids is None:
        return scores
    return torch.full((len(scores), target_size), -torch.inf).index_copy(1, ids, scores)


def check_ids(ids: torch.Tensor, target_size: int, source: str) -> None:
    """Raises CheckpointError unless the ids are different ones of the target's vocabulary."""
    if int(ids.min()) < 0 or int(ids.max()) >= target_size:
        raise CheckpointError(f"{source} names tokens from {int(ids.min())} to {int(ids.max())} of {target_size}")
    if len(ids.unique()) != len(ids):
        raise CheckpointError(f"{source} names a token twice")
