"""Residual blocks of Medusa heads on the sums of their linear layers (arXiv 2401.10774, section 2.1.1)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.rounding import rounded

_BLOCK = 1024


@triton.jit
def _residual_silu(
    x: tl.tensor,
    sums: tl.tensor,
    out: tl.tensor,
    x_head: int,
    x_row: int,
    sums_head: int,
    sums_row: int,
    out_head: int,
    out_row: int,
    scale: float,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """A block of columns of one row of one head a program."""
    release_next()
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    z = tl.load(sums + head * sums_head + row * sums_row + columns, mask=inside, other=0.0)
    values = tl.load(x + head * x_head + row * x_row + columns, mask=inside, other=0.0).to(tl.float32)
    decay = tl.exp(-tl.abs(z))  # at most 1: nothing overflows
    values = (values + z * tl.where(z >= 0, 1.0, decay) / (1.0 + decay)) * scale
    tl.store(out + head * out_head + row * out_row + columns, rounded(values, out.dtype.element_ty), mask=inside)


def residual_silu(x: torch.Tensor, sums: torch.Tensor, scale: float, out: torch.Tensor) -> None:
    """out = scale * (x + silu(sums)) in float32, rounded once.

    bfloat16 x and out, float32 sums, all [heads, rows, width] with numbers of a row side by side; `out` may be `x`.
    """
    heads, rows, width = out.shape
    assert x.stride(2) == sums.stride(2) == out.stride(2) == 1
    assert x.shape == sums.shape == out.shape
    block = min(_BLOCK, triton.next_power_of_2(width))
    launch(
        _residual_silu,
        (rows, heads, triton.cdiv(width, block)),
        x,
        sums,
        out,
        *x.stride()[:2],
        *sums.stride()[:2],
        *out.stride()[:2],
        scale,
        WIDTH=width,
        BLOCK=block,
    )


def residual_silu_reference(x: torch.Tensor, sums: torch.Tensor, scale: float, out: torch.Tensor) -> None:
    """The same in torch."""
    out.copy_((x.float() + torch.nn.functional.silu(sums)) * scale)
