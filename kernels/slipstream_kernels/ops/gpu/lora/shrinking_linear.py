"""A linear layer and the first products of its adapters, `linear` and `shrink`, as one kernel for few rows.

Both read the same x, and with few rows the time is that of reading weights: each program reads, beside its own outputs'
weights, its share of the rows of A of those adapters that some row of the pass has. Sums are the same chains, and so
are the bits. Rows of A that meet rows of another adapter give products that are not stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from slipstream_kernels.ops.gpu.launch import dot, launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.linear import check_operands, linear, linear_reference
from slipstream_kernels.ops.gpu.linear_blocks import rows_to_fetch
from slipstream_kernels.ops.gpu.linear_epilogue import store_outputs
from slipstream_kernels.ops.gpu.linear_stream import chained_sums
from slipstream_kernels.ops.gpu.linear_tile import SHARED_MEMORY, Tile
from slipstream_kernels.ops.gpu.lora.adapter_rows import AdapterRows
from slipstream_kernels.ops.gpu.lora.shrink import shrink, shrink_reference
from slipstream_kernels.ops.gpu.prefetch import prefetch_rows
from slipstream_kernels.ops.gpu.rounding import rounded
from slipstream_kernels.ops.gpu.tuning import MULTIPROCESSORS, best_tile, even_share, filled

MOST_ROWS, FETCHED_ROWS = 256, 128
"""Rows up to which both are one kernel where a tile of descriptors was measured for so many, and where none was."""
_ROOM, _BLOCKS_ROOM = 200 * 1024, SHARED_MEMORY - 8 * 1024
"""Of stages, where threads copy and where descriptors fetch."""
_MATRIX_ROWS, _FEW_LINES, _MOST_LINES = 64, 16, 64
"""Rows of the matrix instruction's first operand: from as many tokens on descriptors fetch, as threads that copy would
have no registers left, and tokens are the first operand of A's product. Rows of A of a program."""


@triton.jit
def _own_lines(active: tl.tensor, index: tl.tensor, ranks: tl.tensor) -> Any:
    """Of the rows of A `index`, counted from 0, of a program: which are there, their adapters, and ranks within these.

    Programs of one block of outputs have the same ones.
    """
    total = tl.load(active) * ranks
    count = tl.cdiv(total, tl.num_programs(1))
    line = tl.program_id(1) * count + index
    own = (index >= 0) & (index < count) & (line < total)
    slot = tl.load(active + 1 + line // ranks, mask=own, other=0)
    return own, slot, line % ranks


@triton.jit
def _store_shrunk(
    sums: tl.tensor,
    index: tl.tensor,
    scales: tl.tensor,
    row_slots: tl.tensor,
    active: tl.tensor,
    shrunk: tl.tensor,
    first_token: tl.tensor,
    rows: tl.tensor,
    ranks: tl.tensor,
) -> None:
    """Scale sums [rows of A `index`, tokens], round them, and keep those of rows that have the adapter.

    What `index` are is found anew: registers do not hold it meanwhile.
    """
    own, slot, rank = _own_lines(active, index, ranks)
    tokens = first_token + tl.arange(0, sums.shape[1])
    token_slots = tl.load(row_slots + tokens, mask=tokens < rows, other=-1)
    scaled = sums * tl.load(scales + slot * ranks + rank, mask=own, other=0.0)[:, None]
    target = shrunk + tokens[None, :] * ranks + rank[:, None]
    tl.store(target, rounded(scaled, tl.bfloat16), mask=own[:, None] & (token_slots[None, :] == slot[:, None]))


@triton.jit(do_not_specialize=["rows", "share", "ahead"])
def _shrinking_stream(
    x: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    a: tl.tensor,
    scales: tl.tensor,
    row_slots: tl.tensor,
    active: tl.tensor,
    shrunk: tl.tensor,
    rows: int,
    share: int,
    ahead: int,
    outputs: int,
    inputs: int,
    ranks: int,
    x_stride: int,
    out_stride: int,
    residual_stride: int,
    WEIGHT_ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    EVEN: tl.constexpr,
    PREFETCH: tl.constexpr,
) -> None:
    """`share` outputs as in `linear_stream`; behind them in the block of weights, rows of A. One block of tokens."""
    release_next()
    first, first_token = tl.program_id(1) * share, tl.program_id(0) * TOKENS
    end = tl.minimum(first + share, outputs)
    index = tl.arange(0, WEIGHT_ROWS)
    of_layer = index < end - first
    of_adapter, slot, rank = _own_lines(active, index - share, ranks)
    weight_at = weight + (first + index).to(tl.int64) * inputs
    rows_at = tl.where(of_adapter, a + (slot * ranks + rank).to(tl.int64) * inputs, weight_at)
    own = of_layer | of_adapter
    if PREFETCH:
        prefetch_rows(rows_at, own, ahead, inputs)
    wait_for_previous()
    tokens = first_token + tl.arange(0, TOKENS)
    x_at = x + tokens.to(tl.int64)[:, None] * x_stride
    present = (tokens < rows)[:, None]
    sums = chained_sums(x_at, rows_at, present, own[:, None], inputs, WEIGHT_ROWS, TOKENS, DEPTH, EVEN)
    _store_shrunk(sums, index - share, scales, row_slots, active, shrunk, first_token, rows, ranks)
    store_outputs(sums, out, bias, residual, first, end, first_token, rows, out_stride, residual_stride, BIAS, RESIDUAL)


@triton.jit(do_not_specialize=["rows", "ahead"])
def _shrinking_blocks(
    x: tl.tensor,
    weight: tl.tensor,
    weight_at: tl.tensor,
    out: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    a: tl.tensor,
    scales: tl.tensor,
    row_slots: tl.tensor,
    active: tl.tensor,
    shrunk: tl.tensor,
    rows: int,
    ahead: int,
    outputs: int,
    inputs: int,
    ranks: int,
    out_stride: int,
    residual_stride: int,
    WEIGHT_ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
    LINES: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    EVEN: tl.constexpr,
    PREFETCH: tl.constexpr,
    TOKENS_FIRST: tl.constexpr,
) -> None:
    """One block of outputs and of tokens as in `linear_blocks`, and LINES rows of A, which meet the same tokens."""
    release_next()
    first, first_token = tl.program_id(1) * WEIGHT_ROWS, tl.program_id(0) * TOKENS
    own, slot, rank = _own_lines(active, tl.arange(0, LINES), ranks)
    if PREFETCH:
        lines = first + tl.arange(0, WEIGHT_ROWS)
        asking = (lines < outputs) & (first_token == 0)
        prefetch_rows(weight_at + lines.to(tl.int64) * inputs, asking, ahead, inputs)
    depths = tl.arange(0, DEPTH)[None, :]
    a_at = a + (slot * ranks + rank).to(tl.int64)[:, None] * inputs + depths
    wait_for_previous()
    sums = tl.zeros((TOKENS, WEIGHT_ROWS) if TOKENS_FIRST else (WEIGHT_ROWS, TOKENS), tl.float32)
    products = tl.zeros((TOKENS, LINES), tl.float32)
    for start in range(0, inputs, DEPTH):
        values = x.load([first_token, start])
        weights = weight.load([first, start])
        factors = tl.load(a_at, mask=own[:, None] if EVEN else own[:, None] & (start + depths < inputs), other=0.0)
        sums = dot(values, tl.trans(weights), sums) if TOKENS_FIRST else dot(weights, tl.trans(values), sums)
        products = dot(values, tl.trans(factors), products)
        a_at += DEPTH
    if TOKENS_FIRST:
        sums = tl.trans(sums)
    index = tl.arange(0, LINES)
    _store_shrunk(tl.trans(products), index, scales, row_slots, active, shrunk, first_token, rows, ranks)
    store_outputs(
        sums, out, bias, residual, first, outputs, first_token, rows, out_stride, residual_stride, BIAS, RESIDUAL
    )


def shrinking_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    a: torch.Tensor,
    scales: torch.Tensor,
    adapter_rows: AdapterRows,
    shrunk: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    gated: bool = False,
    tile: Tile | None = None,
) -> None:
    """`linear` of x, weight, out, bias and residual, and `shrink` of x, a, scales and adapter_rows into `shrunk`.

    `out` is not `x`. `gated`: of a gated layer, whose tiles may be others. `tile` overrules what is chosen: one
    with room for all rows of A; of descriptors, one of 64 tokens or more.
    """
    rows, (slots, ranks, inputs) = len(x), a.shape
    most = min(slots, rows) * ranks
    if tile is None:
        tile = tile_of(len(weight), inputs, rows, most, gated=gated, device=x.device)
    if tile is None:
        linear(x, weight, out, bias=bias, residual=residual)
        shrink(x, a, scales, adapter_rows, shrunk)
        return
    check_operands(x, weight, out)
    assert out.shape == (rows, len(weight))
    assert shrunk.shape == (rows, ranks)
    assert tile.tokens >= _MATRIX_ROWS or not tile.descriptors
    assert _has_room(tile, len(weight), most)
    adapters = a, scales, adapter_rows.row_slots, adapter_rows.active, shrunk
    addends = bias, residual
    strides = out.stride(0), 0 if residual is None else residual.stride(0)
    lines = tile.weight_rows(gated=False)
    grid = triton.cdiv(rows, tile.tokens), triton.cdiv(len(weight), tile.outputs)
    common = {"warps": tile.warps, "stages": tile.stages, "WEIGHT_ROWS": lines, "TOKENS": tile.tokens}
    common |= {"DEPTH": tile.depth, "PREFETCH": tile.prefetch > 0, "EVEN": inputs % tile.depth == 0}
    common |= {"BIAS": bias is not None, "RESIDUAL": residual is not None}
    ahead, sizes = tile.prefetch // 2, (len(weight), inputs, ranks)
    if tile.descriptors:
        blocks = TensorDescriptor(
            x, [rows_to_fetch(x, tile.tokens), inputs], [x.stride(0), 1], [tile.tokens, tile.depth]
        )
        weights = TensorDescriptor(weight, list(weight.shape), [inputs, 1], [lines, tile.depth])
        more = {"LINES": _lines(tile, len(weight), most), "TOKENS_FIRST": tile.tokens_first}
        launch(
            _shrinking_blocks, grid, blocks, weights, weight, out, *addends, *adapters, rows, ahead, *sizes, *strides,
            **common, **more,
        )  # fmt: skip
        return
    launch(
        _shrinking_stream, grid, x, weight, out, *addends, *adapters, rows, tile.outputs, ahead, *sizes, x.stride(0),
        *strides, **common,
    )  # fmt: skip


@cache
def tile_of(outputs: int, inputs: int, rows: int, lines: int, *, gated: bool, device: torch.device) -> Tile | None:
    """How the two are cut as one kernel, beside at most `lines` rows of A; None where they are two."""
    if rows > MOST_ROWS:
        return None
    best = best_tile(outputs // 2 if gated else outputs, inputs, rows, gated=gated, device=device)
    best = replace(best, outputs=best.outputs * 2 if gated else best.outputs)
    tokens = max(triton.next_power_of_2(rows), 16)
    if tokens >= _MATRIX_ROWS:
        measured = best.descriptors and not best.persistent and best.tokens >= _MATRIX_ROWS
        if not measured and rows > FETCHED_ROWS:
            return None
        best = best if measured else _fetched(outputs)
        candidates = [_beside(_lines(best, outputs, lines), best)]
    else:
        candidates = [_streamed(outputs, tokens, block) for block in (64, 128)]
        candidates.sort(key=lambda tile: _idle(outputs, tile))
        if best.tokens == tokens and not best.descriptors:
            candidates.insert(0, best)
    for tile in candidates:
        if tile.stages > 1 and _has_room(tile, outputs, lines):
            return tile
    return None


def _share(tile: Tile, outputs: int, lines: int) -> int:
    """Of each program, of `lines` rows of A."""
    return int(triton.cdiv(lines, triton.cdiv(outputs, tile.outputs)))


def _lines(tile: Tile, outputs: int, lines: int) -> int:
    """Rows of A of the block that a program has beside those that descriptors fetch."""
    return max(_FEW_LINES, int(triton.next_power_of_2(_share(tile, outputs, lines))))


def _has_room(tile: Tile, outputs: int, lines: int) -> bool:
    spare = _MOST_LINES if tile.descriptors else tile.weight_rows(gated=False) - tile.outputs
    return _share(tile, outputs, lines) <= spare


def _beside(lines: int, tile: Tile) -> Tile:
    """A tile of descriptors, with as many stages as there is room for beside `lines` rows of A."""
    for depth in (tile.depth, min(tile.depth, 128)):
        step = (tile.weight_rows(gated=False) + tile.tokens + lines) * depth * 2
        if tile.stages * step * tile.depth // depth <= _BLOCKS_ROOM:
            break
    wanted = tile.stages * tile.depth // depth
    return replace(tile, depth=depth, stages=min(wanted, _BLOCKS_ROOM // step))


def _fetched(outputs: int) -> Tile:
    """A tile of descriptors: one program for each multiprocessor, or where that is not enough two with less memory."""
    block = next((block for block in (32, 64) if block * MULTIPROCESSORS >= outputs), 128)
    stages = 2 if block == 128 else 8
    return Tile(block, _MATRIX_ROWS, 128, stages, descriptors=True, prefetch=1024, tokens_first=True)


def _streamed(outputs: int, tokens: int, block: int) -> Tile:
    """Equal shares that leave room in a block for rows of A."""
    share = even_share(outputs, block - _FEW_LINES)
    return filled(Tile(share, tokens, 128, 1, prefetch=1024), gated=False, room=_ROOM)


def _idle(outputs: int, tile: Tile) -> int:
    """Outputs for which multiprocessors have time in vain."""
    return int(triton.cdiv(outputs, tile.outputs * MULTIPROCESSORS)) * tile.outputs * MULTIPROCESSORS - outputs


def in_two_steps(layer: Callable[..., None], product: Callable[..., None]) -> Callable[..., None]:
    """An op as `shrinking_linear` of a layer's op and that of `shrink`."""

    def op(
        x: torch.Tensor,
        weight: Any,
        out: torch.Tensor,
        a: torch.Tensor,
        scales: torch.Tensor,
        adapter_rows: AdapterRows,
        shrunk: torch.Tensor,
        *,
        gated: bool = False,  # noqa: ARG001  # the op's signature
        **addends: Any,
    ) -> None:
        layer(x, weight, out, **addends)
        product(x, a, scales, adapter_rows, shrunk)

    return op


shrinking_linear_reference = in_two_steps(linear_reference, shrink_reference)
"""The same in torch."""
