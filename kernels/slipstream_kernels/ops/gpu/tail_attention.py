"""Attention of decode rows and tree nodes: the own block of each, folded behind the splits of its prefix.

A row's own block holds the row's position. A node's may hold the rest of the prefix, read through the page table, and
holds its ancestors at their absolute positions, read from the slots that their rows wrote. Where a node's own block
lies behind the one where the prefix ends, that one is read for each node too, and goes on with the last split.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.attention_form import FULL, AttentionForm
from slipstream_kernels.ops.gpu.attention_reference import attend, committed_slots
from slipstream_kernels.ops.gpu.attention_state import (
    NO_PEAK,
    AttentionPartials,
    absorb_block,
    add_sink,
    block_products,
    cap_scale,
    check_layout,
    empty_state,
    first_seen,
    fold,
    load_rows,
    path_slots,
    power_of_two,
    score_scale,
    warps_of,
    window_start,
)
from slipstream_kernels.ops.gpu.fp8_rows import pointers_of
from slipstream_kernels.ops.gpu.launch import INTERPRETED, launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.position_splits import BLOCK, splits_below, start_of_own_block, start_of_split
from slipstream_kernels.ops.gpu.rounding import rounded
from slipstream_kernels.ops.kv_cache.kv_codes import KVRows

_BLOCK = tl.constexpr(BLOCK)
_COLUMNS = tl.constexpr(64)
"""Columns of a product: each head of the row's group as often as there is room."""
_TOGETHER = tl.constexpr(2 if INTERPRETED else 16)
"""Splits whose states are read side by side; any number gives the same sums."""
_COMPARED = tl.constexpr(INTERPRETED)
"""Whether one of equal numbers is found as the largest: the interpreter is slow at reductions of one's own."""


@triton.jit
def _first(one: tl.tensor, other: tl.tensor) -> tl.tensor:  # noqa: ARG001  what combines has two operands
    """One of two equal numbers."""
    return one


@triton.jit
def _distinct(
    m: tl.tensor, l: tl.tensor, o: tl.tensor, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """States [HEADS] and [HEADS, head_dim] of columns that hold each head several times in a row.

    All copies have the same bits: where any of them is taken, threads need not compare theirs.
    """
    copies: tl.constexpr = _COLUMNS // HEADS
    m = tl.reshape(m, (HEADS, copies))
    l = tl.reshape(l, (HEADS, copies))
    o = tl.reshape(o, (HEADS, copies, HEAD_DIM))
    if _COMPARED:
        return tl.max(m, 1), tl.max(l, 1), tl.max(o, 1)
    return tl.reduce(m, 1, _first), tl.reduce(l, 1, _first), tl.reduce(o, 1, _first)


@triton.jit
def _fold_stored(
    m_in: tl.tensor,
    l_in: tl.tensor,
    o_in: tl.tensor,
    begin: tl.tensor,
    splits: tl.tensor,
    splits_stride: int,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The state of a row's splits from `begin` to `splits`, [HEADS] and [HEADS, head_dim], of the stored ones.

    `fold` after `fold`; a common peak for many leaves the sums as they are.
    """
    head = tl.arange(0, HEADS)
    own = head < GROUP
    m, l, o = empty_state(HEADS, HEAD_DIM)
    side = tl.arange(0, _TOGETHER)
    for first in range(begin, splits, _TOGETHER):
        listed = head[:, None] * splits_stride + first + side[None, :]
        held = own[:, None] & (first + side < splits)[None, :]
        peaks = tl.load(m_in + listed, mask=held, other=NO_PEAK)
        higher = tl.maximum(m, tl.max(peaks, 1))
        shrink = power_of_two(m - higher)
        m, l, o = higher, l * shrink, o * shrink[:, None]
        for i in tl.static_range(_TOGETHER):
            column = head * splits_stride + first + i
            used = own & (first + i < splits)
            scale = power_of_two(tl.load(m_in + column, mask=used, other=NO_PEAK) - higher)
            elements = column[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
            l += tl.load(l_in + column, mask=used, other=0.0) * scale
            o = tl.fma(tl.load(o_in + elements, mask=used[:, None], other=0.0), scale[:, None], o)
    return m, l, o


@triton.jit
def _tail_attention(
    q: tl.tensor,
    keys: tl.tensor,
    key_scales: tl.tensor | None,
    values: tl.tensor,
    value_scales: tl.tensor | None,
    page_table: tl.tensor,
    lines: tl.tensor,
    prefix_lengths: tl.tensor,
    paths: tl.tensor,
    depths: tl.tensor,
    write_slots: tl.tensor,
    decode_rows: tl.tensor,
    m_in: tl.tensor,
    l_in: tl.tensor,
    o_in: tl.tensor,
    out: tl.tensor,
    sinks: tl.tensor,
    pages_stride: int,
    head_stride: int,
    splits_stride: int,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    PATH: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    SCALE: tl.constexpr,
    CAP: tl.constexpr,
    REACH: tl.constexpr,
    SINKS: tl.constexpr,
) -> None:
    """One row's heads of one KV head a program.

    Its own block needs nothing of `prefix_attention`, so it comes first: that kernel's programs have all waited when
    this one begins, and all before it has ended. What is read before waiting passes by the L1 cache.
    """
    release_next()
    row = tl.load(decode_rows + tl.program_id(0), cache_modifier=".cg").to(tl.int64)
    kv_head = tl.program_id(1)
    if row < 0:
        wait_for_previous()
        return
    prefix_length = tl.load(prefix_lengths + row, cache_modifier=".cg")
    end = prefix_length + tl.load(depths + row, cache_modifier=".cg")
    pages = page_table + tl.load(lines + row, cache_modifier=".cg").to(tl.int64) * pages_stride
    path = paths + row * PATH
    keys += kv_head.to(tl.int64) * head_stride
    values += kv_head.to(tl.int64) * head_stride
    first_scale = kv_head.to(tl.int64) * (head_stride // HEAD_DIM)
    begin = start_of_own_block(prefix_length)
    own_begin = start_of_own_block(end)
    first = (row * KV_HEADS + kv_head) * GROUP
    copied = tl.minimum(tl.arange(0, _COLUMNS) // (_COLUMNS // HEADS), GROUP - 1)
    dims = tl.arange(0, HEAD_DIM)
    query = tl.load(q + (first + copied)[:, None] * HEAD_DIM + dims[None, :], cache_modifier=".cg")

    position = own_begin + tl.arange(0, _BLOCK)
    slots = path_slots(pages, path, write_slots, position, prefix_length, end, PAGE_SIZE)
    key = load_rows(keys, slots, HEAD_DIM, position < end, True, scales=key_scales, first_scale=first_scale)
    value = load_rows(values, slots, HEAD_DIM, position < end, True, scales=value_scales, first_scale=first_scale)
    products = tl.where((position < end)[None, :], block_products(query, key, CAP), float("-inf"))
    if REACH:
        products = tl.where((position >= first_seen(end - 1, REACH))[None, :], products, float("-inf"))
    m, l, o = empty_state(_COLUMNS, HEAD_DIM)
    m, l, o = absorb_block(m, l, o, products, value, SCALE)
    own_m, own_l, own_o = _distinct(m, l, o, HEADS, HEAD_DIM)

    wait_for_previous()
    m_in += first * splits_stride
    l_in += first * splits_stride
    o_in += first * splits_stride * HEAD_DIM
    split = splits_below(begin)
    stored = begin > start_of_split(split)
    first_split = 0
    if REACH:
        low = window_start(prefix_length - 1, REACH)
        first_split = splits_below(low)
        stored = begin > tl.maximum(start_of_split(split), low)
    crossed = own_begin > begin
    splits = split + (stored & (own_begin == begin)).to(tl.int32)
    total_m, total_l, total_o = _fold_stored(
        m_in, l_in, o_in, first_split, splits, splits_stride, GROUP, HEADS, HEAD_DIM
    )
    if crossed:
        # The block where the prefix ends is full in this row's sequence: it goes on with the split that holds it.
        column = copied * splits_stride + split
        seen = stored & (column >= 0)
        m = tl.load(m_in + column, mask=seen, other=NO_PEAK)
        l = tl.load(l_in + column, mask=seen, other=0.0)
        o = tl.load(o_in + column[:, None] * HEAD_DIM + dims[None, :], mask=seen[:, None], other=0.0)
        position = begin + tl.arange(0, _BLOCK)
        slots = path_slots(pages, path, write_slots, position, prefix_length, end, PAGE_SIZE)
        key = load_rows(keys, slots, HEAD_DIM, scales=key_scales, first_scale=first_scale)
        value = load_rows(values, slots, HEAD_DIM, scales=value_scales, first_scale=first_scale)
        products = block_products(query, key, CAP)
        if REACH:
            products = tl.where((position >= first_seen(end - 1, REACH))[None, :], products, float("-inf"))
        m, l, o = absorb_block(m, l, o, products, value, SCALE)
        last_m, last_l, last_o = _distinct(m, l, o, HEADS, HEAD_DIM)
        total_m, total_l, total_o = fold(total_m, total_l, total_o, last_m, last_l, last_o)
    total_m, total_l, total_o = fold(total_m, total_l, total_o, own_m, own_l, own_o)
    head = tl.arange(0, HEADS)
    if SINKS:
        total_l, total_o = add_sink(total_m, total_l, total_o, sinks, kv_head * GROUP + head, head < GROUP)
    elements = (first + head)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(out + elements, rounded(total_o / total_l[:, None], tl.bfloat16), mask=(head < GROUP)[:, None])


def tail_attention(
    q: torch.Tensor,
    keys: KVRows,
    values: KVRows,
    page_table: torch.Tensor,
    page_size: int,
    lines: torch.Tensor,
    prefix_lengths: torch.Tensor,
    paths: torch.Tensor,
    depths: torch.Tensor,
    write_slots: torch.Tensor,
    decode_rows: torch.Tensor,
    partials: AttentionPartials,
    out: torch.Tensor,
    *,
    form: AttentionForm = FULL,
    sinks: torch.Tensor | None = None,
) -> None:
    """out[row] = softmax(q K^T / sqrt(head_dim)) V for the rows listed, from `partials` and the rows' own blocks.

    bfloat16 q and out [rows, heads, head_dim], keys and values [kv_heads, slots, head_dim] of one layer, written for
    all rows. All else int32: page_table [lines, pages]; by row the line, the prefix length (positions read through the
    page table), `paths` [rows, P] and `depths` (row indices of the ancestors from the root's child to the row itself,
    at the positions from the prefix length on; depth 0 for committed rows) and the slots written; decode_rows [n] the
    rows to serve, -1 for padding. `partials` are what `prefix_attention` wrote for the same rows and prefix lengths: it
    is the kernel launched in front of this one, and writes none of the other inputs, which are read while it runs.
    sinks: float32 [heads], one more score of each head, which has no value.
    """
    rows, heads, head_dim = q.shape
    kv_heads = len(keys)
    check_layout(q, keys, values, page_table)
    k, v = pointers_of(keys), pointers_of(values)
    assert out.is_contiguous()
    assert form.sinks == (sinks is not None)
    assert paths.is_contiguous()
    assert paths.shape[1] <= BLOCK
    assert partials.l.shape[:2] == (rows, heads)
    launch(
        _tail_attention,
        (len(decode_rows), kv_heads),
        q,
        k.rows,
        k.scales,
        v.rows,
        v.scales,
        page_table,
        lines,
        prefix_lengths,
        paths,
        depths,
        write_slots,
        decode_rows,
        partials.m,
        partials.l,
        partials.o,
        out,
        q if sinks is None else sinks,
        page_table.stride(0),
        keys.stride(0),
        partials.l.shape[2],
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        HEADS=triton.next_power_of_2(heads // kv_heads),
        PATH=paths.shape[1],
        HEAD_DIM=head_dim,
        PAGE_SIZE=page_size,
        SCALE=score_scale(head_dim, form),
        CAP=cap_scale(head_dim, form),
        REACH=form.reach,
        SINKS=form.sinks,
        warps=warps_of(_COLUMNS.value),
    )


def tail_attention_reference(
    q: torch.Tensor,
    keys: KVRows,
    values: KVRows,
    page_table: torch.Tensor,
    page_size: int,
    lines: torch.Tensor,
    prefix_lengths: torch.Tensor,
    paths: torch.Tensor,
    depths: torch.Tensor,
    write_slots: torch.Tensor,
    decode_rows: torch.Tensor,
    partials: AttentionPartials,
    out: torch.Tensor,
    *,
    form: AttentionForm = FULL,
    sinks: torch.Tensor | None = None,
) -> None:
    """The same in torch, in float64. It reads all positions itself: a row's bits are those of any other twin's."""
    assert partials.l.shape[:2] == out.shape[:2]
    for row in decode_rows[decode_rows >= 0].tolist():
        committed = committed_slots(page_table, page_size, int(lines[row]), 0, int(prefix_lengths[row]))
        own = write_slots[paths[row, : int(depths[row])].long()].long()
        out[row] = attend(q[row], keys, values, torch.cat([committed, own]), form, sinks)
