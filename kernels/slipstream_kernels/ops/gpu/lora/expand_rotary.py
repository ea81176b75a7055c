"""What adapters add to queries, keys and values, and their rotation and write: `expand` and `rotary_write` as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.lora.adapter_rows import AdapterRows
from slipstream_kernels.ops.gpu.lora.expand import (
    ExpandTiles,
    expand,
    expand_factors,
    expand_reference,
    expand_sums,
    rank_depth,
)
from slipstream_kernels.ops.gpu.rotary import rotary_write, rotary_write_reference
from slipstream_kernels.ops.gpu.rounding import rounded
from slipstream_kernels.ops.kv_cache.kv_codes import KVRows

_MATRIX_ROWS = 64


@triton.jit
def _expand_rotary(
    x: tl.tensor,
    b: tl.tensor,
    slots: tl.tensor,
    placed: tl.tensor,
    qkv: tl.tensor,
    positions: tl.tensor,
    write_slots: tl.tensor,
    table: tl.tensor,
    q_out: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    x_stride: int,
    head_stride: int,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    RANK: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """One head, counted through queries, keys and values, of one block of rows; `first` and `second` are its halves."""
    release_next()
    block, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + block)
    row = tl.load(placed + block * SIZE + tl.arange(0, SIZE))
    present = row >= 0
    column = tl.arange(0, ROWS)
    own = column < HALF
    line = head * 2 * HALF + column
    b_at = b + (slot.to(tl.int64) * ((HEADS + 2 * KV_HEADS) * 2 * HALF) + line) * RANK
    first_factors = expand_factors(b_at, own & (slot >= 0), RANK, DEPTH)
    second_factors = expand_factors(b_at + HALF * RANK, own & (slot >= 0), RANK, DEPTH)
    inside = own[:, None] & present[None, :]
    angles = table + tl.load(positions + row, mask=present, other=0).to(tl.int64)[None, :] * 2 * HALF + column[:, None]
    cosines = tl.load(angles, mask=inside, other=0.0)
    sines = tl.load(angles + HALF, mask=inside, other=0.0)
    written = tl.load(write_slots + row, mask=present, other=-1).to(tl.int64)
    wait_for_previous()
    source = qkv + row.to(tl.int64)[None, :] * ((HEADS + 2 * KV_HEADS) * 2 * HALF) + line[:, None]
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    is_value = head >= HEADS + KV_HEADS
    if slot >= 0:
        part = (head >= HEADS).to(tl.int32) + is_value.to(tl.int32)
        x_at = x + row.to(tl.int64) * x_stride + part * RANK
        first = rounded(expand_sums(x_at, present, first_factors, RANK, DEPTH) + first, tl.bfloat16).to(tl.float32)
        second = rounded(expand_sums(x_at, present, second_factors, RANK, DEPTH) + second, tl.bfloat16).to(tl.float32)
    turned = rounded(tl.where(is_value, first, first * cosines - second * sines), tl.bfloat16)
    other = rounded(tl.where(is_value, second, second * cosines + first * sines), tl.bfloat16)
    if head < HEADS:
        target = q_out + (row.to(tl.int64) * HEADS + head)[None, :] * 2 * HALF + column[:, None]
        tl.store(target, turned, mask=inside)
        tl.store(target + HALF, other, mask=inside)
    else:
        inside &= (written >= 0)[None, :]
        place = written[None, :] * 2 * HALF + column[:, None]
        if is_value:
            target = values + (head - HEADS - KV_HEADS).to(tl.int64) * head_stride + place
        else:
            target = keys + (head - HEADS).to(tl.int64) * head_stride + place
        tl.store(target, turned, mask=inside)
        tl.store(target + HALF, other, mask=inside)


def expand_rotary(
    x: torch.Tensor,
    b: torch.Tensor,
    tiles: ExpandTiles,
    rows: AdapterRows,
    qkv: torch.Tensor,
    positions: torch.Tensor,
    write_slots: torch.Tensor,
    table: torch.Tensor,
    q_out: torch.Tensor,
    keys: KVRows,
    values: KVRows,
    *,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """`expand` of x, b, tiles and rows into `qkv`, which need not be written, then `rotary_write` of it.

    Two kernels where heads are normalised, and where keys and values are held as codes.
    """
    if q_norm is not None or k_norm is not None or not isinstance(keys, torch.Tensor):
        expand(x, b, tiles, rows, qkv)
        rotary_write(
            qkv, positions, write_slots, table, q_out, keys, values, q_norm=q_norm, k_norm=k_norm, eps=eps
        )  # fmt: skip
        return
    assert isinstance(values, torch.Tensor)
    heads, head_dim = q_out.shape[1:]
    kv_heads, rank = keys.shape[0], b.shape[2]
    assert rank % 8 == 0
    assert b.shape[1] == qkv.shape[1] == (heads + 2 * kv_heads) * head_dim
    blocks, size = rows.rows.shape
    launch(
        _expand_rotary,
        (blocks, heads + 2 * kv_heads),
        x,
        b,
        rows.slots,
        rows.rows,
        qkv,
        positions,
        write_slots,
        table,
        q_out,
        keys,
        values,
        x.stride(0),
        keys.stride(0),
        HEADS=heads,
        KV_HEADS=kv_heads,
        HALF=head_dim // 2,
        ROWS=max(_MATRIX_ROWS, triton.next_power_of_2(head_dim // 2)),
        SIZE=size,
        RANK=rank,
        DEPTH=rank_depth(rank),
    )


def in_two_steps(product: Callable[..., None], rotation: Callable[..., None]) -> Callable[..., None]:
    """An op as `expand_rotary` of that of `expand` and a rotation's."""

    def op(
        x: torch.Tensor,
        b: torch.Tensor,
        tiles: ExpandTiles,
        rows: AdapterRows,
        qkv: torch.Tensor,
        *operands: Any,
        **norms: Any,
    ) -> None:
        product(x, b, tiles, rows, qkv)
        rotation(qkv, *operands, **norms)

    return op


expand_rotary_reference = in_two_steps(expand_reference, rotary_write_reference)
"""The same in torch; `qkv` is written."""
