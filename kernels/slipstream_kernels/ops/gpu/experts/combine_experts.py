"""The sum of what a row's experts say, in one order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.rounding import rounded

_BLOCK = 1024


@triton.jit
def _combine(
    outputs: tl.tensor,
    weights: tl.tensor,
    shared: tl.tensor,
    scores: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    size: int,
    score_stride: int,
    CHOSEN: tl.constexpr,
    SHARED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    release_next()
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    pair_at = outputs + row * CHOSEN * size + columns
    weight_at = weights + row * CHOSEN
    total = tl.load(weight_at) * tl.load(pair_at, mask=inside)
    for rank in range(1, CHOSEN):
        total += tl.load(weight_at + rank) * tl.load(pair_at + rank * size, mask=inside)
    at = row * size + columns
    if SHARED:
        share = 1.0 / (1.0 + tl.exp(-tl.load(scores + row * score_stride)))
        total += share * tl.load(shared + at, mask=inside)
    if RESIDUAL:
        total += tl.load(residual + at, mask=inside).to(tl.float32)
    tl.store(out + at, rounded(total, out.dtype.element_ty), mask=inside)


def combine_experts(
    outputs: torch.Tensor,
    weights: torch.Tensor,
    out: torch.Tensor,
    *,
    shared: torch.Tensor | None = None,
    scores: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> None:
    """((weights[0] outputs[0] + weights[1] outputs[1]) + ..) + sigmoid(score) shared + residual, rounded once to out.

    float32 outputs [rows * chosen, size], weights [rows, chosen], shared [rows, size] and its scores [rows] (any
    stride); residual and out: bfloat16 or float32 [rows, size]. All others are contiguous. `out` may be `residual`.
    """
    (rows, chosen), size = weights.shape, out.shape[1]
    assert (shared is None) == (scores is None)
    launch(
        _combine,
        (rows, triton.cdiv(size, _BLOCK)),
        outputs,
        weights,
        outputs if shared is None else shared,
        weights if scores is None else scores,
        out if residual is None else residual,
        out,
        size,
        0 if scores is None else scores.stride(0),
        CHOSEN=chosen,
        SHARED=shared is not None,
        RESIDUAL=residual is not None,
        BLOCK=_BLOCK,
    )


def combine_experts_reference(
    outputs: torch.Tensor,
    weights: torch.Tensor,
    out: torch.Tensor,
    *,
    shared: torch.Tensor | None = None,
    scores: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> None:
    """The same in torch."""
    parts = outputs.unflatten(0, weights.shape) * weights[:, :, None]
    total = parts[:, 0]
    for rank in range(1, parts.shape[1]):
        total = total + parts[:, rank]
    if shared is not None and scores is not None:
        total = total + scores.sigmoid()[:, None] * shared
    if residual is not None:
        total = total + residual.float()
    out.copy_(total)
