"""Linear layer whose operands the tensor memory accelerator fetches by blocks: large tiles, for many rows.

Programs take tiles in groups of `_GROUP` blocks of outputs, so that those that run at the same time share both their
weights and their tokens in the L2 cache.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from slipstream_kernels.ops.gpu.launch import INTERPRETED, dot, launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.linear_epilogue import gated_sums, store_outputs
from slipstream_kernels.ops.gpu.linear_tile import SHARED_MEMORY, Tile
from slipstream_kernels.ops.gpu.prefetch import prefetch_rows

_GROUP = 8


@triton.jit
def _tile_of(number: tl.tensor, output_tiles: tl.tensor, token_tiles: tl.tensor, GROUP: tl.constexpr) -> Any:
    """(output tile, token tile) of the tile `number`."""
    group = number // (GROUP * token_tiles)
    inside = number % (GROUP * token_tiles)
    members = tl.minimum(output_tiles - group * GROUP, GROUP)
    return group * GROUP + inside % members, inside // members


@triton.jit(do_not_specialize=["rows", "ahead"])
def _linear_blocks(
    x: tl.tensor,
    weight: tl.tensor,
    weight_at: tl.tensor,
    out: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    rows: int,
    ahead: int,
    outputs: int,
    inputs: int,
    out_stride: int,
    residual_stride: int,
    WEIGHT_ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRODUCTS: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    GROUP: tl.constexpr,
    PREFETCH: tl.constexpr,
    PERSISTENT: tl.constexpr,
    TOKENS_FIRST: tl.constexpr,
) -> None:
    """`x` and `weight` are descriptors of blocks [TOKENS, DEPTH] and [WEIGHT_ROWS, DEPTH], zero beyond their edges.

    Where not PERSISTENT, a program has one tile. Where PREFETCH, the first `ahead` columns of its weights are asked
    for early. Where TOKENS_FIRST, tokens are the first operand of the product.
    """
    release_next()
    output_tiles = tl.cdiv(outputs * PRODUCTS, WEIGHT_ROWS)
    token_tiles = tl.cdiv(rows, TOKENS)
    if PREFETCH:
        output_tile, token_tile = _tile_of(tl.program_id(0), output_tiles, token_tiles, GROUP)
        lines = output_tile * WEIGHT_ROWS + tl.arange(0, WEIGHT_ROWS)
        asking = (lines < outputs * PRODUCTS) & (token_tile == 0)
        prefetch_rows(weight_at + lines.to(tl.int64) * inputs, asking, ahead, inputs)
    wait_for_previous()
    end = output_tiles * token_tiles if PERSISTENT else tl.program_id(0) + 1
    for number in tl.range(tl.program_id(0), end, tl.num_programs(0), flatten=PERSISTENT):
        output_tile, token_tile = _tile_of(number, output_tiles, token_tiles, GROUP)
        first = output_tile * WEIGHT_ROWS
        first_token = token_tile * TOKENS
        sums = tl.zeros((TOKENS, WEIGHT_ROWS) if TOKENS_FIRST else (WEIGHT_ROWS, TOKENS), tl.float32)
        for start in range(0, inputs, DEPTH):
            if TOKENS_FIRST:
                sums = dot(x.load([first_token, start]), tl.trans(weight.load([first, start])), sums)
            else:
                sums = dot(weight.load([first, start]), tl.trans(x.load([first_token, start])), sums)
        if TOKENS_FIRST:
            sums = tl.trans(sums)
        if PRODUCTS == 2:
            sums = gated_sums(sums)
        first //= PRODUCTS
        store_outputs(
            sums, out, bias, residual, first, outputs, first_token, rows, out_stride, residual_stride, BIAS, RESIDUAL
        )


@cache
def _multiprocessors(device: torch.device) -> int:
    return 3 if INTERPRETED else torch.cuda.get_device_properties(device).multi_processor_count


def _programs(tile: Tile, tiles: int, gated: bool, device: torch.device) -> int:
    """Programs that share `tiles`: where persistent, those that the device holds at once."""
    if not tile.persistent:
        return tiles
    return min(tiles, _multiprocessors(device) * (SHARED_MEMORY // tile.shared_memory(gated)))


def rows_to_fetch(x: torch.Tensor, tokens: int) -> int:
    """Rows of x, and as many behind them as its memory holds to fill the last block of `tokens`.

    Fetching rows takes less time than filling a block with zeros. What lies behind x reaches only sums that are not
    stored.
    """
    held: int = (x.untyped_storage().nbytes() // x.element_size() - x.storage_offset() - x.shape[1]) // x.stride(0) + 1
    filled: int = triton.cdiv(len(x), tokens) * tokens
    return max(len(x), min(filled, held))


def linear_blocks(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    tile: Tile,
    gated: bool,
) -> None:
    """`linear`, or `gated_linear` where `gated`, cut by `tile`."""
    (rows, inputs), outputs = x.shape, out.shape[1]
    tiles = triton.cdiv(outputs, tile.outputs) * triton.cdiv(rows, tile.tokens)
    launch(
        _linear_blocks,
        (_programs(tile, tiles, gated, x.device),),
        TensorDescriptor(x, [rows_to_fetch(x, tile.tokens), inputs], [x.stride(0), 1], [tile.tokens, tile.depth]),
        TensorDescriptor(weight, list(weight.shape), [inputs, 1], [tile.weight_rows(gated), tile.depth]),
        weight,
        out,
        bias,
        residual,
        rows,
        tile.prefetch // 2,
        outputs,
        inputs,
        out.stride(0),
        0 if residual is None else residual.stride(0),
        warps=tile.warps,
        stages=tile.stages,
        WEIGHT_ROWS=tile.weight_rows(gated),
        TOKENS=tile.tokens,
        DEPTH=tile.depth,
        PRODUCTS=2 if gated else 1,
        BIAS=bias is not None,
        RESIDUAL=residual is not None,
        GROUP=_GROUP,
        PREFETCH=tile.prefetch > 0 and not tile.persistent,
        PERSISTENT=tile.persistent,
        TOKENS_FIRST=tile.tokens_first,
    )
