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
    WEIGHED: tl.constexpr,
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
    total = tl.load(pair_at, mask=inside)
    if WEIGHED:
        total = tl.load(weight_at) * total
    for rank in range(1, CHOSEN):
        said = tl.load(pair_at + rank * size, mask=inside)
        total += tl.load(weight_at + rank) * said if WEIGHED else said
    at = row * size + columns
    if SHARED and not WEIGHED:
        total += tl.load(shared + at, mask=inside)
    elif SHARED:
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
    weighed: bool = True,
) -> None:
    """((weights[0] outputs[0] + weights[1] outputs[1]) + ..) + sigmoid(score) shared + residual, rounded once to out.

    float32 outputs [rows * chosen, size], weights [rows, chosen], shared [rows, size] and its scores [rows] (any
    stride); residual and out: bfloat16 or float32 [rows, size]. All others are contiguous. `out` may be `residual`.
    Where not `weighed`, weights only say how many experts a row has: all that is said, by the shared one too, is added
    as it is, and there are no scores.
    """
    (rows, chosen), size = weights.shape, out.shape[1]
    assert (scores is not None) == (shared is not None and weighed)
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
        WEIGHED=weighed,
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
    weighed: bool = True,
) -> None:
    """The same in torch."""
    parts = outputs.unflatten(0, weights.shape)
    parts = parts * weights[:, :, None] if weighed else parts
    total = parts[:, 0]
    for rank in range(1, parts.shape[1]):
        total = total + parts[:, rank]
    if shared is not None:
        total = total + (shared if scores is None else scores.sigmoid()[:, None] * shared)
    if residual is not None:
        total = total + residual.float()
    out.copy_(total)
