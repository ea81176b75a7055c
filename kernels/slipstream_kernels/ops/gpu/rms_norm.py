"""Root mean square normalisation (arXiv 1910.07467)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.fp8_linear.quantise_rows import quantise_rows_reference
from slipstream_kernels.ops.gpu.fp8_rows import codes_of, magnitude_bits, own_exponent, power
from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.rounding import rounded

_LARGEST_TILE = 8192
_ELEMENTS_PER_WARP = 512
"""16 a thread: two 16-byte loads of bfloat16."""
_TOGETHER = tl.constexpr(8)
"""Elements of bfloat16 that one request brings or takes."""


@triton.jit
def _normalised(
    x: tl.tensor, weight: tl.tensor, scale: tl.tensor, places: tl.tensor, HIDDEN: tl.constexpr, DTYPE: tl.constexpr
) -> tl.tensor:
    values = tl.load(x + places, mask=places < HIDDEN, other=0.0).to(tl.float32)
    gain = tl.load(weight + places, mask=places < HIDDEN, other=0.0).to(tl.float32)
    return rounded(values * scale * gain, DTYPE)


@triton.jit
def _store(
    normed: tl.tensor,
    out: tl.tensor,
    codes: tl.tensor,
    reciprocal: tl.tensor,
    places: tl.tensor,
    HIDDEN: tl.constexpr,
    KEPT: tl.constexpr,
    CODED: tl.constexpr,
) -> None:
    if KEPT:
        tl.store(out + places, normed, mask=places < HIDDEN)
    if CODED:
        # Wider stores would give a thread other elements of x, and the sum of squares another order.
        codes_at = tl.max_contiguous(codes + places, _TOGETHER)
        tl.store(codes_at, codes_of(normed.to(tl.float32), reciprocal), mask=places < HIDDEN)


@triton.jit
def rms_norm_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    eps: float,
    HIDDEN: tl.constexpr,
    TILE: tl.constexpr,
    CHOSEN: tl.constexpr,
    KEPT: tl.constexpr,
    CODED: tl.constexpr,
) -> None:
    """One row a program, in tiles of TILE columns; row i of `out` is row rows[i] of `x` where CHOSEN, else row i.

    The result goes to `out` where KEPT, and becomes `codes` and `scales` where CODED.
    """
    release_next()
    target = tl.program_id(0)
    source = target
    if CHOSEN:
        source = tl.maximum(tl.load(rows + target), 0)
    x += source.to(tl.int64) * HIDDEN
    dtype: tl.constexpr = out.dtype.element_ty if KEPT else tl.bfloat16
    if KEPT:
        out += target.to(tl.int64) * HIDDEN
    if CODED:
        codes += target.to(tl.int64) * HIDDEN
    columns = tl.arange(0, TILE)
    reciprocal = 0.0
    if TILE >= HIDDEN:
        inside = columns < HIDDEN
        gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
        wait_for_previous()
        values = tl.load(x + columns, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(values * values) / HIDDEN + eps)
        normed = rounded(values * scale * gain, dtype)
        if CODED:
            exponent = own_exponent(tl.max(magnitude_bits(normed.to(tl.float32)), 0))
            tl.store(scales + target, power(exponent))
            reciprocal = power(254 - exponent)
        _store(normed, out, codes, reciprocal, columns, HIDDEN, KEPT, CODED)
    else:
        wait_for_previous()
        squares = tl.zeros((TILE,), tl.float32)
        for start in range(0, HIDDEN, TILE):
            values = tl.load(x + start + columns, mask=start + columns < HIDDEN, other=0.0).to(tl.float32)
            squares += values * values
        scale = tl.rsqrt(tl.sum(squares) / HIDDEN + eps)
        if CODED:
            largest = tl.zeros((TILE,), tl.int32)
            for start in range(0, HIDDEN, TILE):
                normed = _normalised(x, weight, scale, start + columns, HIDDEN, dtype)
                largest = tl.maximum(largest, magnitude_bits(normed.to(tl.float32)))
            exponent = own_exponent(tl.max(largest, 0))
            tl.store(scales + target, power(exponent))
            reciprocal = power(254 - exponent)
        for start in range(0, HIDDEN, TILE):
            normed = _normalised(x, weight, scale, start + columns, HIDDEN, dtype)
            _store(normed, out, codes, reciprocal, start + columns, HIDDEN, KEPT, CODED)


def rms_norm_tile(hidden: int) -> tuple[int, int]:
    """Columns of a tile and warps of a program for rows of `hidden`: they fix the order of the sum."""
    tile = min(_LARGEST_TILE, triton.next_power_of_2(hidden))
    return tile, min(max(tile // _ELEMENTS_PER_WARP, 1), 16)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor | None,
    eps: float,
    rows: torch.Tensor | None = None,
    *,
    codes: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
) -> None:
    """x / sqrt(mean(x^2) + eps) * weight by row, in float32 and rounded once: all bfloat16, x [n, hidden].

    `out` [m, hidden] holds a row for each of x or, given int32 `rows` [m], for each of these rows of x; a row of -1 is
    padding and gets some row's result. `out` may be `x` where `rows` is not given. uint8 codes [m, hidden], contiguous,
    and float32 scales [m] get what `quantise_rows` makes of `out`, which need not be there then. `weight` and `rows`
    are not the work of kernels of the same pass: they are read while those may still run.
    """
    hidden = x.shape[1]
    assert (codes is None) == (scales is None)
    assert out is not None or codes is not None
    assert codes is None or codes.is_contiguous()
    tile, warps = rms_norm_tile(hidden)
    launch(
        rms_norm_kernel,
        (len(x) if rows is None else len(rows),),
        x,
        weight,
        out,
        rows,
        codes,
        scales,
        eps,
        warps=warps,
        HIDDEN=hidden,
        TILE=tile,
        CHOSEN=rows is not None,
        KEPT=out is not None,
        CODED=codes is not None,
    )


def rms_norm_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor | None,
    eps: float,
    rows: torch.Tensor | None = None,
    *,
    codes: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
) -> None:
    """The same in torch."""
    values = (x if rows is None else x[rows.long().clamp(min=0)]).float()
    scale = torch.rsqrt(values.square().mean(-1, keepdim=True) + eps)
    normed = values * scale * weight.float()
    if codes is not None:
        assert scales is not None
        quantise_rows_reference(normed.bfloat16(), codes, scales)
    if out is not None:
        out.copy_(normed)
