"""What adapters add to the gate and to what it multiplies, and the gate: `expand` and `silu_mul` as one."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.gate_up import GROUP
from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.linear_epilogue import silu_mul_sums
from slipstream_kernels.ops.gpu.lora.adapter_rows import AdapterRows
from slipstream_kernels.ops.gpu.lora.expand import (
    ExpandTiles,
    expand_factors,
    expand_reference,
    expand_sums,
    rank_depth,
)
from slipstream_kernels.ops.gpu.rounding import rounded
from slipstream_kernels.ops.gpu.silu_mul import silu_mul_reference

_ROWS, _DEEP_ROWS, _DEEP = 128, 64, 64
"""Outputs of a program, multiples of the 64 rows of a matrix instruction: two factors of each are in registers, so they
are fewer from some depth on."""


@triton.jit
def _expand_gate(
    x: tl.tensor,
    b: tl.tensor,
    slots: tl.tensor,
    placed: tl.tensor,
    gate_up: tl.tensor,
    out: tl.tensor,
    outputs: int,
    x_stride: int,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    RANK: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    """ROWS outputs of one block of rows."""
    release_next()
    block = tl.program_id(0)
    slot = tl.load(slots + block)
    row = tl.load(placed + block * SIZE + tl.arange(0, SIZE)).to(tl.int64)
    present = row >= 0
    column = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    own = column < outputs
    b_at = b + (slot.to(tl.int64) * 2 * outputs + column) * RANK
    gate_factors = expand_factors(b_at, own & (slot >= 0), RANK, DEPTH)
    up_factors = expand_factors(b_at + outputs * RANK, own & (slot >= 0), RANK, DEPTH)
    wait_for_previous()
    inside = own[:, None] & present[None, :]
    at = gate_up + row[None, :] * 2 * outputs + (column // GROUP * (2 * GROUP) + column % GROUP)[:, None]
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + GROUP, mask=inside, other=0.0).to(tl.float32)
    if slot >= 0:
        x_at = x + row * x_stride
        gate = rounded(expand_sums(x_at, present, gate_factors, RANK, DEPTH) + gate, gate_up.dtype.element_ty)
        up = rounded(expand_sums(x_at + RANK, present, up_factors, RANK, DEPTH) + up, gate_up.dtype.element_ty)
        gate = gate.to(tl.float32)
        up = up.to(tl.float32)
    gated = silu_mul_sums(gate, up)
    tl.store(out + row[None, :] * outputs + column[:, None], rounded(gated, out.dtype.element_ty), mask=inside)


def expand_gate(
    x: torch.Tensor, b: torch.Tensor, tiles: ExpandTiles, rows: AdapterRows, gate_up: torch.Tensor, out: torch.Tensor
) -> None:
    """`expand` of x, b, tiles and rows into `gate_up`, which need not be written, then `silu_mul` of it into `out`."""
    assert tiles.grouped
    outputs, rank = out.shape[1], b.shape[2]
    assert rank % 8 == 0
    assert b.shape[1] == gate_up.shape[1] == 2 * outputs
    assert gate_up.is_contiguous()
    assert out.is_contiguous()
    blocks, size = rows.rows.shape
    depth = rank_depth(rank)
    lines = _ROWS if depth < _DEEP else _DEEP_ROWS
    launch(
        _expand_gate,
        (blocks, triton.cdiv(outputs, lines)),
        x,
        b,
        rows.slots,
        rows.rows,
        gate_up,
        out,
        outputs,
        x.stride(0),
        SIZE=size,
        ROWS=lines,
        RANK=rank,
        DEPTH=depth,
        GROUP=GROUP,
    )


def expand_gate_reference(
    x: torch.Tensor, b: torch.Tensor, tiles: ExpandTiles, rows: AdapterRows, gate_up: torch.Tensor, out: torch.Tensor
) -> None:
    """The same in torch; `gate_up` is written."""
    expand_reference(x, b, tiles, rows, gate_up)
    silu_mul_reference(gate_up, out)
