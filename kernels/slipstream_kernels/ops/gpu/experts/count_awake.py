"""How many experts of each layer a pass's rows have: what it has read of their weights."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous

PART = 32
"""Experts of a program."""
_CHUNK = 128


def parts_of(experts: int) -> int:
    """Counts of a layer of so many experts."""
    return -(-experts // PART)


@triton.jit
def _count(
    ids: tl.tensor, awake: tl.tensor, pairs: int, experts: int, PART: tl.constexpr, CHUNK: tl.constexpr
) -> None:  # fmt: skip
    """A program has a part of the experts of one layer."""
    release_next()
    wait_for_previous()
    layer, part = tl.program_id(0), tl.program_id(1)
    own = ids + layer.to(tl.int64) * pairs
    expert = part * PART + tl.arange(0, PART)
    lanes = tl.arange(0, CHUNK)
    met = tl.zeros((PART,), tl.int32)
    for start in range(0, pairs, CHUNK):
        of = tl.load(own + start + lanes, mask=start + lanes < pairs, other=-1)
        met = tl.maximum(met, tl.max((of[None, :] == expert[:, None]).to(tl.int32), 1))
    tl.store(awake + layer * tl.num_programs(1) + part, tl.sum(tl.where(expert < experts, met, 0), 0))


def count_awake(ids: torch.Tensor, awake: torch.Tensor, *, experts: int) -> None:
    """Count the experts that stand in int32 ids [layers, rows, chosen], contiguous, once in each layer.

    Ids of `experts` and above are none. int32 awake [layers, parts_of(experts)], of `PART` experts each.
    """
    layers, rows, chosen = ids.shape
    launch(_count, (layers, awake.shape[1]), ids, awake, rows * chosen, experts, PART=PART, CHUNK=_CHUNK)


def count_awake_reference(ids: torch.Tensor, awake: torch.Tensor, *, experts: int) -> None:
    """The same in torch."""
    layers, parts = awake.shape
    met = torch.zeros(layers, 1 + parts * PART, dtype=torch.int32, device=ids.device)
    met.scatter_(1, ids.reshape(layers, -1).long().clamp(max=parts * PART), 1)
    met[:, experts:] = 0
    awake.copy_(met[:, :-1].reshape(layers, parts, PART).sum(2))
