"""Attention of decode rows and tree nodes: the last blocks of each, then all splits folded in order.

A row's last blocks begin where the full blocks of its prefix end. A node's hold the rest of the prefix, read through
the page table, and its ancestors at their absolute positions, read from the slots that their rows wrote.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.attention_reference import attend, committed_slots
from slipstream_kernels.ops.gpu.attention_state import (
    WARPS,
    AttentionPartials,
    absorb_block,
    block_scores,
    check_layout,
    empty_state,
    fold,
    load_columns,
    load_rows,
    paged_slots,
    score_scale,
)
from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.position_splits import BLOCK, is_split_bound, splits_below, start_of_split
from slipstream_kernels.ops.gpu.rounding import rounded

_BLOCK = tl.constexpr(BLOCK)
_TOGETHER = tl.constexpr(8)
"""Splits whose states are read side by side."""


@triton.jit
def _split_state(
    m_in: tl.tensor,
    l_in: tl.tensor,
    o_in: tl.tensor,
    column: tl.tensor,
    split: tl.tensor,
    used: tl.tensor,
    HEAD_DIM: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The stored state of a split; the empty one for columns not `used`."""
    m = tl.load(m_in + column + split, mask=used, other=float("-inf"))
    l = tl.load(l_in + column + split, mask=used, other=0.0)
    elements = (column + split)[None, :] * HEAD_DIM + tl.arange(0, HEAD_DIM)[:, None]
    return m, l, tl.load(o_in + elements, mask=used[None, :], other=0.0)


@triton.jit
def _tail_slots(
    pages: tl.tensor,
    path: tl.tensor,
    write_slots: tl.tensor,
    position: tl.tensor,
    prefix_length: tl.tensor,
    end: tl.tensor,
    PAGE_SIZE: tl.constexpr,
) -> tl.tensor:
    """int64 slots of a row's `position`s below `end`: of the prefix by the page table, of ancestors by their rows."""
    committed = position < prefix_length
    drafted = (position < end) & (position >= prefix_length)
    ancestor = tl.load(path + position - prefix_length, mask=drafted, other=0)
    own = tl.load(write_slots + ancestor, mask=drafted, other=0)
    return tl.where(committed, paged_slots(pages, position, PAGE_SIZE, committed), own.to(tl.int64))


@triton.jit
def _tail_attention(
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
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
    pages_stride: int,
    head_stride: int,
    splits_stride: int,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PATH: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    SCALE: tl.constexpr,
) -> None:
    """One row's heads of one KV head a program."""
    wait_for_previous()
    release_next()
    row = tl.load(decode_rows + tl.program_id(0)).to(tl.int64)
    kv_head = tl.program_id(1)
    if row < 0:
        return
    prefix_length = tl.load(prefix_lengths + row)
    end = prefix_length + tl.load(depths + row)
    pages = page_table + tl.load(lines + row).to(tl.int64) * pages_stride
    path = paths + row * PATH
    keys += kv_head.to(tl.int64) * head_stride
    values += kv_head.to(tl.int64) * head_stride
    begin = prefix_length // _BLOCK * _BLOCK
    position = begin + tl.arange(0, _BLOCK)
    slots = _tail_slots(pages, path, write_slots, position, prefix_length, end, PAGE_SIZE)
    key = load_rows(keys, slots, HEAD_DIM, position < end)
    value = load_rows(values, slots, HEAD_DIM, position < end)
    query, offset, used = load_columns(q, row, 1, kv_head, KV_HEADS * GROUP, GROUP, HEAD_DIM, COLUMNS)

    first = (row * KV_HEADS + kv_head) * GROUP
    m_in += first * splits_stride
    l_in += first * splits_stride
    o_in += first * splits_stride * HEAD_DIM
    column = offset * splits_stride
    split = splits_below(begin)
    total_m, total_l, total_o = empty_state(HEAD_DIM, COLUMNS)
    for below in range(0, split, _TOGETHER):
        for i in tl.static_range(_TOGETHER):
            m, l, o = _split_state(m_in, l_in, o_in, column, below + i, used & (below + i < split), HEAD_DIM)
            total_m, total_l, total_o = fold(total_m, total_l, total_o, m, l, o)
    stored = used & (begin > start_of_split(split))
    m, l, o = _split_state(m_in, l_in, o_in, column, split, stored, HEAD_DIM)
    for start in range(begin, end, _BLOCK):
        if (start > begin) & is_split_bound(start):
            total_m, total_l, total_o = fold(total_m, total_l, total_o, m, l, o)
            m, l, o = empty_state(HEAD_DIM, COLUMNS)
        scores = tl.where((position < end)[:, None], block_scores(key, query, SCALE), float("-inf"))
        m, l, o = absorb_block(m, l, o, scores, value)
        position += _BLOCK
        slots = _tail_slots(pages, path, write_slots, position, prefix_length, end, PAGE_SIZE)
        key = load_rows(keys, slots, HEAD_DIM, position < end)
        value = load_rows(values, slots, HEAD_DIM, position < end)
    total_m, total_l, total_o = fold(total_m, total_l, total_o, m, l, o)
    elements = offset[None, :] * HEAD_DIM + tl.arange(0, HEAD_DIM)[:, None]
    result = rounded(total_o / tl.where(used, total_l, 1.0)[None, :], tl.bfloat16)
    tl.store(out + first * HEAD_DIM + elements, result, mask=used[None, :])


def tail_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
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
) -> None:
    """out[row] = softmax(q K^T / sqrt(head_dim)) V for the rows listed, from `partials` and the rows' own last blocks.

    bfloat16 q and out [rows, heads, head_dim], keys and values [kv_heads, slots, head_dim] of one layer, written for
    all rows. All else int32: page_table [lines, pages]; by row the line, the prefix length (positions read through the
    page table), `paths` [rows, P] and `depths` (row indices of the ancestors from the root's child to the row itself,
    at the positions from the prefix length on; depth 0 for committed rows) and the slots written; decode_rows [n] the
    rows to serve, -1 for padding. `partials` are what `prefix_attention` wrote for the same rows and prefix lengths.
    """
    rows, heads, head_dim = q.shape
    kv_heads = len(keys)
    check_layout(q, keys, values, page_table)
    assert out.is_contiguous()
    assert paths.is_contiguous()
    assert partials.l.shape[:2] == (rows, heads)
    launch(
        _tail_attention,
        (len(decode_rows), kv_heads),
        q,
        keys,
        values,
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
        page_table.stride(0),
        keys.stride(0),
        partials.l.shape[2],
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        PATH=paths.shape[1],
        HEAD_DIM=head_dim,
        COLUMNS=max(triton.next_power_of_2(heads // kv_heads), 16),
        PAGE_SIZE=page_size,
        SCALE=score_scale(head_dim),
        warps=WARPS,
    )


def tail_attention_reference(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
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
) -> None:
    """The same in torch, in float64. It reads all positions itself: a row's bits are those of any other twin's."""
    assert partials.l.shape[:2] == out.shape[:2]
    for row in decode_rows[decode_rows >= 0].tolist():
        committed = committed_slots(page_table, page_size, int(lines[row]), 0, int(prefix_lengths[row]))
        own = write_slots[paths[row, : int(depths[row])].long()].long()
        out[row] = attend(q[row], keys, values, torch.cat([committed, own]))
