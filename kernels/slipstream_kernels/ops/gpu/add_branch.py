"""What a layer adds to the residual stream where it has a norm, or a bias that ranks may not add each for itself."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.rms_norm import rms_norm_tile
from slipstream_kernels.ops.gpu.rounding import rounded


@triton.jit
def _branch_part(
    branch: tl.tensor, bias: tl.tensor, places: tl.tensor, inside: tl.tensor, BIAS: tl.constexpr
) -> tl.tensor:
    values = tl.load(branch + places, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        values += tl.load(bias + places, mask=inside, other=0.0).to(tl.float32)
    return values


@triton.jit
def _add_branch(
    branch: tl.tensor,
    x: tl.tensor,
    bias: tl.tensor,
    norm: tl.tensor,
    eps: float,
    HIDDEN: tl.constexpr,
    TILE: tl.constexpr,
    BIAS: tl.constexpr,
    NORM: tl.constexpr,
) -> None:
    """One row a program, in tiles of TILE columns."""
    release_next()
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    branch += row * HIDDEN
    x += row * HIDDEN
    columns = tl.arange(0, TILE)
    squares = tl.zeros((TILE,), tl.float32)
    if NORM:
        for start in range(0, HIDDEN, TILE):
            values = _branch_part(branch, bias, start + columns, start + columns < HIDDEN, BIAS)
            squares += values * values
    scale = tl.rsqrt(tl.sum(squares) / HIDDEN + eps)
    for start in range(0, HIDDEN, TILE):
        places = start + columns
        inside = places < HIDDEN
        values = _branch_part(branch, bias, places, inside, BIAS)
        if NORM:
            values = values * scale * tl.load(norm + places, mask=inside, other=0.0).to(tl.float32)
        total = tl.load(x + places, mask=inside, other=0.0).to(tl.float32) + values
        tl.store(x + places, rounded(total, x.dtype.element_ty), mask=inside)


def add_branch(
    branch: torch.Tensor,
    x: torch.Tensor,
    eps: float,
    *,
    bias: torch.Tensor | None = None,
    norm: torch.Tensor | None = None,
) -> None:
    """x += y / sqrt(mean(y^2) + eps) * norm by row, y = branch + bias, in float32 and rounded once.

    bfloat16 x [n, hidden] and bias [hidden]; branch [n, hidden] and norm [hidden] bfloat16 or float32. Without `norm`,
    y itself is added.
    """
    hidden = x.shape[1]
    tile, warps = rms_norm_tile(hidden)
    launch(
        _add_branch,
        (len(x),),
        branch,
        x,
        x if bias is None else bias,
        x if norm is None else norm,
        eps,
        warps=warps,
        HIDDEN=hidden,
        TILE=tile,
        BIAS=bias is not None,
        NORM=norm is not None,
    )


def add_branch_reference(
    branch: torch.Tensor,
    x: torch.Tensor,
    eps: float,
    *,
    bias: torch.Tensor | None = None,
    norm: torch.Tensor | None = None,
) -> None:
    """The same in torch."""
    values = branch.float() if bias is None else branch.float() + bias.float()
    if norm is not None:
        values = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + eps) * norm.float()
    x.copy_(x.float() + values)
