"""Root mean square normalisation (arXiv 1910.07467)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.rounding import rounded

_LARGEST_TILE = 8192
_ELEMENTS_PER_WARP = 512
"""16 a thread: two 16-byte loads of bfloat16."""


@triton.jit
def rms_norm_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    eps: float,
    HIDDEN: tl.constexpr,
    TILE: tl.constexpr,
    CHOSEN: tl.constexpr,
) -> None:
    """One row a program, in tiles of TILE columns; row i of `out` is row rows[i] of `x` where CHOSEN, else row i."""
    release_next()
    target = tl.program_id(0)
    source = target
    if CHOSEN:
        source = tl.maximum(tl.load(rows + target), 0)
    x += source.to(tl.int64) * HIDDEN
    out += target.to(tl.int64) * HIDDEN
    columns = tl.arange(0, TILE)
    if TILE >= HIDDEN:
        inside = columns < HIDDEN
        gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
        wait_for_previous()
        values = tl.load(x + columns, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(values * values) / HIDDEN + eps)
        tl.store(out + columns, rounded(values * scale * gain, out.dtype.element_ty), mask=inside)
    else:
        wait_for_previous()
        squares = tl.zeros((TILE,), tl.float32)
        for start in range(0, HIDDEN, TILE):
            values = tl.load(x + start + columns, mask=start + columns < HIDDEN, other=0.0).to(tl.float32)
            squares += values * values
        scale = tl.rsqrt(tl.sum(squares) / HIDDEN + eps)
        for start in range(0, HIDDEN, TILE):
            inside = start + columns < HIDDEN
            values = tl.load(x + start + columns, mask=inside, other=0.0).to(tl.float32)
            gain = tl.load(weight + start + columns, mask=inside, other=0.0).to(tl.float32)
            tl.store(out + start + columns, rounded(values * scale * gain, out.dtype.element_ty), mask=inside)


def rms_norm_tile(hidden: int) -> tuple[int, int]:
    """Columns of a tile and warps of a program for rows of `hidden`: they fix the order of the sum."""
    tile = min(_LARGEST_TILE, triton.next_power_of_2(hidden))
    return tile, min(max(tile // _ELEMENTS_PER_WARP, 1), 16)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, eps: float, rows: torch.Tensor | None = None
) -> None:
    """x / sqrt(mean(x^2) + eps) * weight by row, in float32 and rounded once: all bfloat16, x [n, hidden].

    `out` [m, hidden] holds a row for each of x or, given int32 `rows` [m], for each of these rows of x; a row of -1 is
    padding and gets some row's result. `out` may be `x` where `rows` is not given. `weight` and `rows` are not the work
    of kernels of the same pass: they are read while those may still run.
    """
    hidden = x.shape[1]
    tile, warps = rms_norm_tile(hidden)
    launch(
        rms_norm_kernel,
        (len(x) if rows is None else len(rows),),
        x,
        weight,
        out,
        x if rows is None else rows,
        eps,
        warps=warps,
        HIDDEN=hidden,
        TILE=tile,
        CHOSEN=rows is not None,
    )


def rms_norm_reference(
    x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, eps: float, rows: torch.Tensor | None = None
) -> None:
    """The same in torch."""
    values = (x if rows is None else x[rows.long().clamp(min=0)]).float()
    scale = torch.rsqrt(values.square().mean(-1, keepdim=True) + eps)
    out.copy_(values * scale * weight.float())
