"""The first product of an adapter, A x * scale: one chain along the inputs, whichever rows are beside a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.linear_stream import chained_sums
from slipstream_kernels.ops.gpu.linear_tile import Tile
from slipstream_kernels.ops.gpu.lora.adapter_rows import AdapterRows
from slipstream_kernels.ops.gpu.rounding import rounded
from slipstream_kernels.ops.gpu.tuning import filled

MATRIX_ROWS = 64
"""Rows of the matrix instruction's first operand: those that a rank lacks are zero, and read from nowhere."""
_DEPTH, _ROOM = 128, 200 * 1024
"""Steps along the inputs, and the shared memory that those on their way fill: a program has a multiprocessor to itself
where few rows have adapters, and waits for memory alone."""


@triton.jit
def _shrink(
    x: tl.tensor,
    a: tl.tensor,
    scales: tl.tensor,
    slots: tl.tensor,
    placed: tl.tensor,
    out: tl.tensor,
    ranks: int,
    inputs: int,
    x_stride: int,
    SIZE: tl.constexpr,
    RANKS: tl.constexpr,
    DEPTH: tl.constexpr,
    EVEN: tl.constexpr,
) -> None:
    """RANKS columns of one block of rows."""
    release_next()
    wait_for_previous()
    block = tl.program_id(0)
    slot = tl.load(slots + block)
    if slot >= 0:
        rows = tl.load(placed + block * SIZE + tl.arange(0, SIZE))
        present = rows >= 0
        rank = tl.program_id(1) * RANKS + tl.arange(0, RANKS)
        own = rank < ranks
        line = slot.to(tl.int64) * ranks + rank
        x_at = x + rows.to(tl.int64)[:, None] * x_stride
        sums = chained_sums(x_at, a + line * inputs, present[:, None], own[:, None], inputs, RANKS, SIZE, DEPTH, EVEN)
        scaled = sums * tl.load(scales + line, mask=own, other=0.0)[:, None]
        target = out + rows.to(tl.int64)[None, :] * ranks + rank[:, None]
        tl.store(target, rounded(scaled, tl.bfloat16), mask=own[:, None] & present[None, :])


def shrink(x: torch.Tensor, a: torch.Tensor, scales: torch.Tensor, rows: AdapterRows, out: torch.Tensor) -> None:
    """out[row] = round((x[row] a[slot]^T) * scales[slot]) of the rows in blocks; other rows are left alone.

    bfloat16 x [any, K] and a [slots, ranks, K], float32 scales [slots, ranks], bfloat16 out [any, ranks], contiguous
    but for x, whose rows lie a multiple of 8 elements apart. K is a multiple of 16.
    """
    assert x.stride(1) == 1
    assert x.shape[1] == a.shape[2]
    assert x.shape[1] % 16 == x.stride(0) % 8 == 0
    ranks, inputs = a.shape[1:]
    blocks, size = rows.rows.shape
    depth = min(_DEPTH, triton.next_power_of_2(inputs))
    tile = filled(Tile(MATRIX_ROWS, size, depth, 1), gated=False, room=_ROOM)
    launch(
        _shrink,
        (blocks, triton.cdiv(ranks, MATRIX_ROWS)),
        x,
        a,
        scales,
        rows.slots,
        rows.rows,
        out,
        ranks,
        inputs,
        x.stride(0),
        warps=tile.warps,
        stages=tile.stages,
        SIZE=size,
        RANKS=MATRIX_ROWS,
        DEPTH=depth,
        EVEN=inputs % depth == 0,
    )


def shrink_reference(
    x: torch.Tensor, a: torch.Tensor, scales: torch.Tensor, rows: AdapterRows, out: torch.Tensor
) -> None:
    """The same in torch, with float64 sums."""
    for slot, block in zip(rows.slots.tolist(), rows.rows, strict=True):
        if slot >= 0:
            own = block[block >= 0].long()
            out[own] = ((x[own].double() @ a[slot].double().T).float() * scales[slot]).to(out.dtype)
