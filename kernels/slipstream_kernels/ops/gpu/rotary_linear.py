"""The layer that makes queries, keys and values, with their rotation and the write into the paged KV store.

With few rows one kernel does both: a program's outputs are taken in such an order that a matrix instruction leaves the
two elements of a head that turn together in one thread. Sums, roundings and products are those of `linear` and
`rotary_write`, and so are the bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.linear import check_operands, linear, linear_reference
from slipstream_kernels.ops.gpu.linear_stream import chained_sums
from slipstream_kernels.ops.gpu.linear_tile import Tile
from slipstream_kernels.ops.gpu.prefetch import prefetch_rows
from slipstream_kernels.ops.gpu.rotary import rotary_write, rotary_write_reference
from slipstream_kernels.ops.gpu.rounding import rounded
from slipstream_kernels.ops.gpu.tuning import best_tile
from slipstream_kernels.ops.kv_cache.kv_codes import KVRows

MOST_ROWS = 1
"""Rows up to which one kernel was found faster than two."""

_GROUP = tl.constexpr(8)
"""Elements of a head's first half in a row, then as many of its second: rows r and r + 8 of a product."""


@triton.jit
def _weight_row(place: tl.tensor, HALF: tl.constexpr) -> tl.tensor:
    """The weight row that is computed at `place`."""
    head, inside = place // (2 * HALF), place % (2 * HALF)
    column = inside // (2 * _GROUP) * _GROUP + inside % _GROUP
    return head * 2 * HALF + inside // _GROUP % 2 * HALF + column


@triton.jit
def _halves(sums: tl.tensor) -> Any:
    """[2 n, tokens] in the order of `_weight_row` as first and second halves, [n, tokens] each."""
    groups = tl.reshape(sums, (sums.shape[0] // (2 * _GROUP), 2, _GROUP, sums.shape[1]))
    first, second = tl.split(tl.permute(groups, (0, 2, 3, 1)))
    shape: tl.constexpr = (sums.shape[0] // 2, sums.shape[1])
    return tl.reshape(first, shape), tl.reshape(second, shape)


@triton.jit(do_not_specialize=["rows", "share", "ahead"])
def _rotary_linear(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    positions: tl.tensor,
    write_slots: tl.tensor,
    table: tl.tensor,
    q_out: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    rows: int,
    share: int,
    ahead: int,
    inputs: int,
    x_stride: int,
    head_stride: int,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    WEIGHT_ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
    BIAS: tl.constexpr,
    EVEN: tl.constexpr,
    PREFETCH: tl.constexpr,
) -> None:
    """`share` outputs, a multiple of 16, of one block of tokens, as `linear_stream` has them."""
    release_next()
    token_tiles = tl.cdiv(rows, TOKENS)
    first = tl.multiple_of(tl.program_id(0) // token_tiles * share, 2 * _GROUP)
    first_token = tl.program_id(0) % token_tiles * TOKENS
    end = tl.minimum(first + share, (HEADS + 2 * KV_HEADS) * 2 * HALF)
    place = first + tl.arange(0, WEIGHT_ROWS)
    own = place < end
    line = _weight_row(place, HALF)
    rows_at = weight + line.to(tl.int64) * inputs
    if PREFETCH:
        prefetch_rows(rows_at, own & (first_token == 0), ahead, inputs)
    tokens = first_token + tl.arange(0, TOKENS)
    present = tokens < rows
    pair = tl.multiple_of(first // 2, _GROUP) + tl.arange(0, WEIGHT_ROWS // 2)[:, None]
    head, column = pair // HALF, pair % HALF
    row = tokens[None, :]
    angles = table + tl.load(positions + row, mask=row < rows, other=0) * (2 * HALF) + column
    cosines, sines = tl.load(angles), tl.load(angles + HALF)
    slot = tl.load(write_slots + row, mask=row < rows, other=-1)
    wait_for_previous()
    x_at = x + tokens.to(tl.int64)[:, None] * x_stride
    sums = chained_sums(x_at, rows_at, present[:, None], own[:, None], inputs, WEIGHT_ROWS, TOKENS, DEPTH, EVEN)
    if BIAS:
        sums += tl.load(bias + line, mask=own, other=0.0).to(tl.float32)[:, None]

    a, b = _halves(rounded(sums, tl.bfloat16).to(tl.float32))
    is_value = head >= HEADS + KV_HEADS
    turned = rounded(tl.where(is_value, a, a * cosines - b * sines), tl.bfloat16)
    other = rounded(tl.where(is_value, b, b * cosines + a * sines), tl.bfloat16)
    inside = pair < tl.multiple_of(end // 2, _GROUP)
    is_query = inside & (head < HEADS) & (row < rows)
    target = q_out + (row * HEADS + head) * (2 * HALF) + column
    tl.store(target, turned, mask=is_query)
    tl.store(target + HALF, other, mask=is_query)
    written = inside & (slot >= 0)
    is_key = written & (head >= HEADS) & (head < HEADS + KV_HEADS)
    target = keys + (head - HEADS).to(tl.int64) * head_stride + slot.to(tl.int64) * (2 * HALF) + column
    tl.store(target, turned, mask=is_key)
    tl.store(target + HALF, other, mask=is_key)
    is_value = written & is_value
    target = values + (head - HEADS - KV_HEADS).to(tl.int64) * head_stride + slot.to(tl.int64) * (2 * HALF) + column
    tl.store(target, turned, mask=is_value)
    tl.store(target + HALF, other, mask=is_value)


@cache
def fused_tile(outputs: int, inputs: int, rows: int, device: torch.device) -> Tile | None:
    """How one kernel that does both is cut; None where the layer and the rotation are two."""
    tile = best_tile(outputs, inputs, rows, gated=False, device=device)
    if rows > MOST_ROWS or tile.descriptors:
        return None
    return replace(tile, outputs=int(triton.cdiv(tile.outputs, 2 * _GROUP.value)) * 2 * _GROUP.value)


def rotary_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    positions: torch.Tensor,
    write_slots: torch.Tensor,
    table: torch.Tensor,
    qkv: torch.Tensor,
    q_out: torch.Tensor,
    keys: KVRows,
    values: KVRows,
    *,
    bias: torch.Tensor | None = None,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
    tile: Tile | None = None,
) -> None:
    """`linear` of `x`, `weight` and `bias`, then `rotary_write` of its result, all operands as theirs.

    `qkv` is room for the result between the two, and need not be written. Codes are of whole heads, and two kernels'.
    `tile`, not of `descriptors` and with outputs
    a multiple of 16, makes it one kernel whose tile it is. No kernel of the same pass writes inputs other than `x`.
    """
    if q_norm is None and k_norm is None and tile is None and isinstance(keys, torch.Tensor):
        tile = fused_tile(len(weight), x.shape[1], len(x), x.device)
    if tile is None:
        linear(x, weight, qkv, bias=bias)
        rotary_write(
            qkv, positions, write_slots, table, q_out, keys, values, q_norm=q_norm, k_norm=k_norm, eps=eps
        )  # fmt: skip
        return
    assert isinstance(keys, torch.Tensor)
    assert isinstance(values, torch.Tensor)
    heads, head_dim = q_out.shape[1:]
    kv_heads = keys.shape[0]
    check_operands(x, weight, qkv)
    assert len(weight) == (heads + 2 * kv_heads) * head_dim
    assert tile.outputs % (2 * _GROUP.value) == 0
    assert not tile.descriptors
    (rows, inputs), outputs = x.shape, len(weight)
    launch(
        _rotary_linear,
        (triton.cdiv(outputs, tile.outputs) * triton.cdiv(rows, tile.tokens),),
        x,
        weight,
        bias,
        positions,
        write_slots,
        table,
        q_out,
        keys,
        values,
        rows,
        tile.outputs,
        tile.prefetch // 2,
        inputs,
        x.stride(0),
        keys.stride(0),
        warps=tile.warps,
        stages=tile.stages,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HALF=head_dim // 2,
        WEIGHT_ROWS=tile.weight_rows(gated=False),
        TOKENS=tile.tokens,
        DEPTH=tile.depth,
        BIAS=bias is not None,
        EVEN=inputs % tile.depth == 0,
        PREFETCH=tile.prefetch > 0,
    )


def in_two_steps(layer: Callable[..., None], rotation: Callable[..., None]) -> Callable[..., None]:
    """An op as `rotary_linear` of a layer's op and a rotation's."""

    def op(
        x: torch.Tensor,
        weight: torch.Tensor,
        positions: torch.Tensor,
        write_slots: torch.Tensor,
        table: torch.Tensor,
        qkv: torch.Tensor,
        *outputs: torch.Tensor,
        bias: torch.Tensor | None = None,
        **norms: Any,
    ) -> None:
        layer(x, weight, qkv, bias=bias)
        rotation(qkv, positions, write_slots, table, *outputs, **norms)

    return op


rotary_linear_reference = in_two_steps(linear_reference, rotary_write_reference)
"""The same in torch; `qkv` is written."""
