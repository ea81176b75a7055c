"""What happens to the float32 sums of a linear layer before they are stored."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.rounding import rounded


@triton.jit
def gated_sums(sums: tl.tensor) -> Any:
    """silu(gate) * up: float32 [2 n, tokens], rows in the order of gate_up.py, to [n, tokens]."""
    gate, up = gate_and_up(sums)
    return tl.reshape(silu_mul_sums(gate, up), (sums.shape[0] // 2, sums.shape[1]))


@triton.jit
def gate_and_up(sums: tl.tensor) -> Any:
    """Two of [n / 8, 8, tokens], of sums [2 n, tokens] whose rows are in the order of gate_up.py."""
    groups = tl.reshape(sums, (sums.shape[0] // 16, 2, 8, sums.shape[1]))
    return tl.split(tl.permute(groups, (0, 2, 3, 1)))


@triton.jit
def silu_mul_sums(gate: tl.tensor, up: tl.tensor) -> Any:
    """silu(gate) * up of float32 tensors."""
    decay = tl.exp(-tl.abs(gate))  # at most 1: no gate overflows
    return gate * tl.where(gate >= 0, 1.0, decay) / (1.0 + decay) * up


@triton.jit
def store_outputs(
    sums: tl.tensor,
    out: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    first_token: tl.tensor,
    rows: tl.tensor,
    out_stride: tl.tensor,
    residual_stride: tl.tensor,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
) -> None:
    """out[token, column] = sums + bias + residual, added in float32 in this order and rounded once.

    `sums` [columns, tokens] start at column `first` and row `first_token`; columns from `end` on and rows from `rows`
    on are not stored. `residual` may be `out`: nothing is stored before all is loaded.
    """
    columns = tl.arange(0, sums.shape[0])
    tokens = tl.arange(0, sums.shape[1])
    own = columns < end - first
    inside = own[:, None] & (tokens < rows - first_token)[None, :]
    # Offsets inside a tile fit 32 bits, which halves the registers they take.
    if BIAS:
        sums += tl.load(bias + first + columns, mask=own, other=0.0).to(tl.float32)[:, None]
    if RESIDUAL:
        corner = residual + first_token.to(tl.int64) * residual_stride + first
        offsets = tokens[None, :] * residual_stride + columns[:, None]
        sums += tl.load(corner + offsets, mask=inside, other=0.0).to(tl.float32)
    corner = out + first_token.to(tl.int64) * out_stride + first
    offsets = tokens[None, :] * out_stride + columns[:, None]
    tl.store(corner + offsets, rounded(sums, out.dtype.element_ty), mask=inside)
