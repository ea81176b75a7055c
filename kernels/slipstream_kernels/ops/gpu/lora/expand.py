"""The second product of an adapter, added to a layer's output: one chain along the rank.

Its matrices, and which rows have which adapter, are read before the layer in front has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.gate_up import GROUP
from slipstream_kernels.ops.gpu.launch import dot, launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.lora.adapter_rows import AdapterRows
from slipstream_kernels.ops.gpu.rounding import rounded

_TILE_ROWS = 128
"""Rows of b of a program: a multiple of 64, those of the matrix instruction's first operand."""


@dataclass(frozen=True, slots=True)
class ExpandTiles:
    """How a layer's outputs are cut: int32 `tiles` [n, 4]: first row of b and how many, part, first column of out.

    A tile lies within one of the layer's parts, which stand one above the other in b. In out they do, too, or they take
    turns in groups of eight, as gate and up do (ops/gpu/gate_up.py), where `grouped`.
    """

    tiles: torch.Tensor
    grouped: bool

    @classmethod
    def of(cls, parts: Sequence[int], device: torch.device | str, *, grouped: bool = False) -> ExpandTiles:
        """From the outputs of each part, multiples of 8; two of equal size where `grouped`."""
        assert all(outputs % GROUP == 0 for outputs in parts)
        tiles, start = [], 0
        for part, outputs in enumerate(parts):
            for first in range(0, outputs, _TILE_ROWS):
                column = first * len(parts) + part * GROUP if grouped else start + first
                tiles.append((start + first, min(_TILE_ROWS, outputs - first), part, column))
            start += outputs
        return cls(torch.tensor(tiles, dtype=torch.int32, device=device).reshape(-1, 4), grouped)

    def columns(self, tile: torch.Tensor) -> torch.Tensor:
        """Columns of out of one tile's rows, int64."""
        index = torch.arange(int(tile[1]), device=tile.device)
        return tile[3] + (index // GROUP * 2 * GROUP + index % GROUP if self.grouped else index)


def rank_depth(rank: int) -> int:
    """Steps along a rank: it is padded by zeros, whose products leave sums alone."""
    return max(16, int(triton.next_power_of_2(rank)))


@triton.jit
def expand_factors(b_at: tl.tensor, own: tl.tensor, RANK: tl.constexpr, DEPTH: tl.constexpr) -> tl.tensor:
    """[n, DEPTH] of rows of b, given where each begins; zero where not `own`."""
    depths = tl.arange(0, DEPTH)[None, :]
    return tl.load(b_at[:, None] + depths, mask=own[:, None] & (depths < RANK), other=0.0)


@triton.jit
def expand_sums(
    x_at: tl.tensor, present: tl.tensor, factors: tl.tensor, RANK: tl.constexpr, DEPTH: tl.constexpr
) -> tl.tensor:
    """factors x^T, float32 [n, rows], of the rows that are present, given where each begins."""
    depths = tl.arange(0, DEPTH)[None, :]
    values = tl.load(x_at[:, None] + depths, mask=present[:, None] & (depths < RANK), other=0.0)
    return dot(factors, tl.trans(values), tl.zeros((factors.shape[0], values.shape[0]), tl.float32))


@triton.jit
def _expand(
    x: tl.tensor,
    b: tl.tensor,
    tiles: tl.tensor,
    slots: tl.tensor,
    placed: tl.tensor,
    out: tl.tensor,
    outputs: int,
    x_stride: int,
    out_stride: int,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    RANK: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUPED: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    """One tile of outputs of one block of rows."""
    release_next()
    tile = tiles + tl.program_id(1) * 4
    first, part = tl.load(tile), tl.load(tile + 2)
    count, column = tl.multiple_of(tl.load(tile + 1), 8), tl.multiple_of(tl.load(tile + 3), 8)
    block = tl.program_id(0)
    slot = tl.load(slots + block)
    rows = tl.load(placed + block * SIZE + tl.arange(0, SIZE))
    index = tl.arange(0, ROWS)
    own = index < count
    b_at = b + (slot.to(tl.int64) * outputs + first + index) * RANK
    factors = expand_factors(b_at, own & (slot >= 0), RANK, DEPTH)
    wait_for_previous()
    if slot >= 0:
        present = rows >= 0
        sums = expand_sums(x + rows.to(tl.int64) * x_stride + part * RANK, present, factors, RANK, DEPTH)
        columns = column + index
        if GROUPED:
            columns = column + index // GROUP * (2 * GROUP) + index % GROUP
        target = out + rows.to(tl.int64)[None, :] * out_stride + columns[:, None]
        inside = own[:, None] & present[None, :]
        sums += tl.load(target, mask=inside, other=0.0).to(tl.float32)
        tl.store(target, rounded(sums, out.dtype.element_ty), mask=inside)


def expand(x: torch.Tensor, b: torch.Tensor, tiles: ExpandTiles, rows: AdapterRows, out: torch.Tensor) -> None:
    """out[row] += x[row, part] b[slot]^T of the rows in blocks, added in float32 and rounded; others are left alone.

    bfloat16 x [any, parts * rank] and b [slots, outputs, rank], contiguous; out [any, outputs], bfloat16 or float32,
    whose rows are contiguous. The rank is a multiple of 8.
    """
    outputs, rank = b.shape[1:]
    assert rank % 8 == 0
    assert out.stride(1) == 1
    blocks, size = rows.rows.shape
    launch(
        _expand,
        (blocks, len(tiles.tiles)),
        x,
        b,
        tiles.tiles,
        rows.slots,
        rows.rows,
        out,
        outputs,
        x.stride(0),
        out.stride(0),
        SIZE=size,
        ROWS=_TILE_ROWS,
        RANK=rank,
        DEPTH=rank_depth(rank),
        GROUPED=tiles.grouped,
        GROUP=GROUP,
    )


def expand_reference(
    x: torch.Tensor, b: torch.Tensor, tiles: ExpandTiles, rows: AdapterRows, out: torch.Tensor
) -> None:
    """The same in torch, with float64 sums."""
    rank = b.shape[2]
    for slot, block in zip(rows.slots.tolist(), rows.rows, strict=True):
        if slot < 0:
            continue
        own = block[block >= 0].long()
        for tile in tiles.tiles:
            first, count, part, _ = tile.tolist()
            sums = x[own, part * rank : (part + 1) * rank].double() @ b[slot, first : first + count].double().T
            columns = tiles.columns(tile)
            out[own[:, None], columns] = (out[own[:, None], columns].float() + sums.float()).to(out.dtype)
