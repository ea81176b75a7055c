"""Rows of one tensor, by their numbers, as another's: copied, or normalised on the way."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.rms_norm import rms_norm_reference
from slipstream_kernels.ops.gpu.rounding import rounded

_ELEMENTS_PER_WARP = 512


@triton.jit
def normed_row(
    source: tl.tensor, gain: tl.tensor, eps: float, WIDTH: tl.constexpr, TILE: tl.constexpr, NORMED: tl.constexpr
) -> tl.tensor:
    """A row of WIDTH numbers, bfloat16 [TILE], after RMSNorm where NORMED."""
    columns = tl.arange(0, TILE)
    inside = columns < WIDTH
    values = tl.load(source + columns, mask=inside, other=0.0)
    if NORMED:
        wide = values.to(tl.float32)
        scale = tl.rsqrt(tl.sum(wide * wide) / WIDTH + eps)
        weight = tl.load(gain + columns, mask=inside, other=0.0).to(tl.float32)
        values = rounded(wide * scale * weight, tl.bfloat16)
    return values


@triton.jit
def _gather_norm(
    source: tl.tensor,
    rows: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    source_stride: int,
    out_stride: int,
    eps: float,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    CHOSEN: tl.constexpr,
    NORMED: tl.constexpr,
) -> None:
    """One row a program."""
    release_next()
    wait_for_previous()
    target = tl.program_id(0)
    row = target
    if CHOSEN:
        row = tl.maximum(tl.load(rows + target), 0)
    values = normed_row(source + row.to(tl.int64) * source_stride, weight, eps, WIDTH, TILE, NORMED)
    columns = tl.arange(0, TILE)
    tl.store(out + target.to(tl.int64) * out_stride + columns, values, mask=columns < WIDTH)


def row_tile(width: int) -> tuple[int, int]:
    """Columns of a program's tile for whole rows of `width`, and its warps."""
    tile = int(triton.next_power_of_2(width))
    return tile, min(max(tile // _ELEMENTS_PER_WARP, 1), 16)


def gather_norm(
    source: torch.Tensor, rows: torch.Tensor | None, weight: torch.Tensor | None, out: torch.Tensor, eps: float
) -> None:
    """out[i] = source[rows[i]], normalised as by `rms_norm` where there is a weight.

    bfloat16 source [n, width], weight [width], out [m, width], rows of either as far apart as one likes, out no part of
    source; int32 rows [m], -1 being padding that gets some row; without them row i of `out` is row i of `source`.
    """
    assert source.stride(1) == out.stride(1) == 1
    width = source.shape[1]
    tile, warps = row_tile(width)
    launch(
        _gather_norm,
        (len(out),),
        source,
        source if rows is None else rows,
        source if weight is None else weight,
        out,
        source.stride(0),
        out.stride(0),
        eps,
        warps=warps,
        WIDTH=width,
        TILE=tile,
        CHOSEN=rows is not None,
        NORMED=weight is not None,
    )


def gather_norm_reference(
    source: torch.Tensor, rows: torch.Tensor | None, weight: torch.Tensor | None, out: torch.Tensor, eps: float
) -> None:
    """The same in torch."""
    taken = source[: len(out)] if rows is None else source[rows.long().clamp(min=0)]
    if weight is None:
        out.copy_(taken)
    else:
        rms_norm_reference(taken, weight, out, eps)
