"""Sums across the ranks of tensor parallelism, in rank order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.rounding import rounded

_BLOCK = 1024


@triton.jit
def _rank_sum(
    parts: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    part_stride: int,
    size: int,
    RANKS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    release_next()
    wait_for_previous()
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < size
    total = tl.load(parts + places, mask=inside).to(tl.float32)
    for _ in tl.static_range(1, RANKS):
        parts += part_stride
        total += tl.load(parts + places, mask=inside).to(tl.float32)
    if RESIDUAL:
        total += tl.load(residual + places, mask=inside).to(tl.float32)
    tl.store(out + places, rounded(total, out.dtype.element_ty), mask=inside)


def rank_sum(parts: torch.Tensor, residual: torch.Tensor | None, out: torch.Tensor) -> None:
    """((parts[0] + parts[1]) + ...) + residual in float32, rounded once to out's dtype.

    parts: float32 or bfloat16 [ranks, rows, hidden], each part contiguous; residual and out: bfloat16 or float32
    [rows, hidden], contiguous. `out` may be `residual`.
    """
    ranks = len(parts)
    launch(
        _rank_sum,
        (triton.cdiv(out.numel(), _BLOCK),),
        parts,
        out if residual is None else residual,
        out,
        parts.stride(0),
        out.numel(),
        RANKS=ranks,
        RESIDUAL=residual is not None,
        BLOCK=_BLOCK,
    )


def rank_sum_reference(parts: torch.Tensor, residual: torch.Tensor | None, out: torch.Tensor) -> None:
    """The same in torch."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    if residual is not None:
        total = total + residual.float()
    out.copy_(total)
