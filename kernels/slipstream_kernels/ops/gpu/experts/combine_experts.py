"""The sum of what a row's experts say, in one order, and the norm of the layer behind them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.rms_norm import rms_norm_reference, rms_norm_tile
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
    norm: tl.tensor,
    normed: tl.tensor,
    size: int,
    score_stride: int,
    eps: float,
    CHOSEN: tl.constexpr,
    WEIGHED: tl.constexpr,
    SHARED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    NORMED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    release_next()
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    if NORMED:
        gain = tl.load(norm + columns, mask=inside, other=0.0).to(tl.float32)
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    pair_at = outputs + row * CHOSEN * size + columns
    weight_at = weights + row * CHOSEN
    total = tl.load(pair_at, mask=inside, other=0.0)
    if WEIGHED:
        total = tl.load(weight_at) * total
    for rank in range(1, CHOSEN):
        said = tl.load(pair_at + rank * size, mask=inside, other=0.0)
        total += tl.load(weight_at + rank) * said if WEIGHED else said
    at = row * size + columns
    if SHARED and not WEIGHED:
        total += tl.load(shared + at, mask=inside, other=0.0)
    elif SHARED:
        share = 1.0 / (1.0 + tl.exp(-tl.load(scores + row * score_stride)))
        total += share * tl.load(shared + at, mask=inside, other=0.0)
    if RESIDUAL:
        total += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    stream = rounded(total, out.dtype.element_ty)
    tl.store(out + at, stream, mask=inside)
    if NORMED:
        values = stream.to(tl.float32)
        scale = tl.rsqrt(tl.sum(values * values) / size + eps)
        tl.store(normed + at, rounded(values * scale * gain, normed.dtype.element_ty), mask=inside)


def combine_experts(
    outputs: torch.Tensor,
    weights: torch.Tensor,
    out: torch.Tensor,
    *,
    shared: torch.Tensor | None = None,
    scores: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    weighed: bool = True,
    norm: torch.Tensor | None = None,
    normed: torch.Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """((weights[0] outputs[0] + weights[1] outputs[1]) + ..) + sigmoid(score) shared + residual, rounded once to out.

    float32 outputs [rows * chosen, size], weights [rows, chosen], shared [rows, size] and its scores [rows] (any
    stride); residual and out: bfloat16 or float32 [rows, size]. All others are contiguous. `out` may be `residual`.
    Where not `weighed`, weights only say how many experts a row has: all that is said, by the shared one too, is added
    as it is, and there are no scores. norm [size], which is not the work of kernels of the same pass, and normed
    [rows, size], bfloat16: the latter becomes `rms_norm` of out, whose sums may run in another order; without the
    former it is left alone.
    """
    (rows, chosen), size = weights.shape, out.shape[1]
    assert (scores is not None) == (shared is not None and weighed)
    assert norm is None or normed is not None
    block, warps = _BLOCK, 4
    if norm is not None:
        block, warps = triton.next_power_of_2(size), 2 * rms_norm_tile(size)[1]
    launch(
        _combine,
        (rows, triton.cdiv(size, block)),
        outputs,
        weights,
        outputs if shared is None else shared,
        weights if scores is None else scores,
        out if residual is None else residual,
        out,
        out if norm is None else norm,
        out if normed is None else normed,
        size,
        0 if scores is None else scores.stride(0),
        eps,
        warps=warps,
        CHOSEN=chosen,
        WEIGHED=weighed,
        SHARED=shared is not None,
        RESIDUAL=residual is not None,
        NORMED=norm is not None,
        BLOCK=block,
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
    norm: torch.Tensor | None = None,
    normed: torch.Tensor | None = None,
    eps: float = 0.0,
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
    if norm is not None:
        assert normed is not None
        rms_norm_reference(out, norm, normed, eps)
