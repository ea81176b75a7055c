"""Attention of whole trees, in tiles: a request's root and nodes read its prefix once, and no state leaves a program.

A tile is a segment of `prefix_attention`. Behind the blocks below the one where the prefix ends come those that hold
drafted tokens, once for each path that ends in the segment: a row takes in those of the path to its leaf, which holds
it. The bits are those of `prefix_attention` followed by `tail_attention`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.attention_form import FULL, AttentionForm
from slipstream_kernels.ops.gpu.attention_reference import attend, committed_slots
from slipstream_kernels.ops.gpu.attention_state import (
    add_block,
    add_sink,
    block_peak,
    block_products,
    cap_scale,
    check_layout,
    empty_state,
    fold,
    load_columns,
    load_rows,
    paged_slots,
    path_slots,
    power_of_two,
    raised,
    score_scale,
    stages_of,
    warps_of,
    window_start,
    within,
)
from slipstream_kernels.ops.gpu.fp8_rows import pointers_of
from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.position_splits import BLOCK, is_split_bound, start_of_own_block
from slipstream_kernels.ops.gpu.rounding import rounded
from slipstream_kernels.ops.kv_cache.kv_codes import KVRows

STAGES = 5
"""Of Triton's pipeline: two blocks are on their way while one is computed, their pages two blocks ahead of them."""

PROGRAMS = 96
"""As many are faster than `prefix_attention` and `tail_attention` are with their states in memory."""

_BLOCK = tl.constexpr(BLOCK)


@triton.jit
def _finite(value: tl.tensor) -> tl.tensor:
    """Values with zeros for those that are no numbers, which would spoil rows that give them no weight.

    A row that sees such a position has a key that is no number there either, and is none itself.
    """
    return tl.where(tl.abs(value.to(tl.float32)) < float("inf"), value, 0.0)


@triton.jit
def _absorb_for_some(
    m: tl.tensor,
    l: tl.tensor,
    o: tl.tensor,
    total_m: tl.tensor,
    total_l: tl.tensor,
    total_o: tl.tensor,
    products: tl.tensor,
    value: tl.tensor,
    taking: tl.tensor,
    fresh: tl.tensor,
    SCALE: tl.constexpr,
    REACH: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """State and fold of splits after one more block of the columns that are `taking` it; the others keep theirs.

    Where the block begins a state, `fresh`, the one before is folded. products are -inf where masked.
    """
    begins = taking & fresh
    folded_m, folded_l, folded_o = fold(total_m, total_l, total_o, m, l, o)
    total_m = tl.where(begins, folded_m, total_m)
    total_l = tl.where(begins, folded_l, total_l)
    total_o = tl.where(begins[:, None], folded_o, total_o)
    products = tl.where(taking[:, None], products, float("-inf"))
    peak = tl.where(taking, block_peak(products, SCALE, REACH), m)
    higher = tl.where(begins, peak, tl.maximum(m, peak))
    shrink = tl.where(begins, 0.0, power_of_two(tl.minimum(m - higher, 0.0)))
    next_l, next_o = add_block(higher, l * shrink, o * shrink[:, None], products, value, SCALE)
    l = tl.where(taking, next_l, l)
    o = tl.where(taking[:, None], next_o, o)
    return higher, l, o, total_m, total_l, total_o


@triton.jit
def _tree_attention(
    q: tl.tensor,
    keys: tl.tensor,
    key_scales: tl.tensor | None,
    values: tl.tensor,
    value_scales: tl.tensor | None,
    page_table: tl.tensor,
    segments: tl.tensor,
    paths: tl.tensor,
    depths: tl.tensor,
    leaves: tl.tensor,
    write_slots: tl.tensor,
    out: tl.tensor,
    sinks: tl.tensor,
    pages_stride: int,
    head_stride: int,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PATH: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    SCALE: tl.constexpr,
    CAP: tl.constexpr,
    REACH: tl.constexpr,
    SINKS: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """One segment's heads of one KV head a program."""
    kv_head = tl.program_id(0)
    segment = segments + tl.program_id(1) * 4
    first_row = tl.load(segment, cache_modifier=".cg")
    rows = tl.load(segment + 1, cache_modifier=".cg")
    line = tl.load(segment + 2, cache_modifier=".cg")
    prefix_length = tl.load(segment + 3, cache_modifier=".cg")
    wait_for_previous()
    release_next()
    if rows == 0:
        return
    pages = page_table + line.to(tl.int64) * pages_stride
    keys += kv_head.to(tl.int64) * head_stride
    values += kv_head.to(tl.int64) * head_stride
    first_scale = kv_head.to(tl.int64) * (head_stride // HEAD_DIM)
    query, offset, used = load_columns(q, first_row, rows, kv_head, KV_HEADS * GROUP, GROUP, HEAD_DIM, COLUMNS)
    m, l, o = empty_state(COLUMNS, HEAD_DIM)
    total_m, total_l, total_o = empty_state(COLUMNS, HEAD_DIM)
    row_of = first_row + tl.arange(0, COLUMNS) // GROUP
    begin = start_of_own_block(prefix_length)
    low = 0
    if REACH:
        low = window_start(prefix_length - 1, REACH)
        own = prefix_length - 1 + tl.load(depths + row_of, mask=used, other=0)
    for start in tl.range(low, begin, _BLOCK, num_stages=STAGES):
        position = start + tl.arange(0, _BLOCK)
        slots = paged_slots(pages, position, PAGE_SIZE)
        key = load_rows(keys, slots, HEAD_DIM, scales=key_scales, first_scale=first_scale)
        value = load_rows(values, slots, HEAD_DIM, scales=value_scales, first_scale=first_scale)
        products = block_products(query, key, CAP)
        if REACH:
            products = within(products, position, own, REACH)
        # The branch needs the products, so that the last block's values are still being summed while they are computed.
        if is_split_bound(start):
            total_m, total_l, total_o = fold(total_m, total_l, total_o, m, l, o)
            m, l, o = block_peak(products, SCALE, REACH), tl.zeros_like(l), tl.zeros_like(o)
        else:
            m, l, o = raised(m, l, o, tl.maximum(m, block_peak(products, SCALE)))
        l, o = add_block(m, l, o, products, value, SCALE)

    end = prefix_length + tl.load(depths + row_of, mask=used, other=0)
    leaf_of = tl.load(leaves + row_of, mask=used, other=-1)
    crossed = start_of_own_block(end) > begin
    fresh = is_split_bound(begin) | (crossed == 0)
    for row in range(first_row, first_row + rows):
        if tl.load(leaves + row) == row:
            path = paths + row * PATH
            leaf_end = prefix_length + tl.load(depths + row)
            taking = leaf_of == row
            position = begin + tl.arange(0, _BLOCK)
            slots = path_slots(pages, path, write_slots, position, prefix_length, leaf_end, PAGE_SIZE)
            key = load_rows(keys, slots, HEAD_DIM, position < leaf_end, scales=key_scales, first_scale=first_scale)
            value = _finite(
                load_rows(values, slots, HEAD_DIM, position < leaf_end, scales=value_scales, first_scale=first_scale)
            )
            products = tl.where(position[None, :] < end[:, None], block_products(query, key, CAP), float("-inf"))
            if REACH:
                products = within(products, position, own, REACH)
            m, l, o, total_m, total_l, total_o = _absorb_for_some(
                m, l, o, total_m, total_l, total_o, products, value, taking, fresh, SCALE, REACH
            )
            if leaf_end > begin + _BLOCK:
                position += _BLOCK
                slots = path_slots(pages, path, write_slots, position, prefix_length, leaf_end, PAGE_SIZE)
                key = load_rows(keys, slots, HEAD_DIM, position < leaf_end, scales=key_scales, first_scale=first_scale)
                value = _finite(
                    load_rows(
                        values, slots, HEAD_DIM, position < leaf_end, scales=value_scales, first_scale=first_scale
                    )
                )
                products = tl.where(position[None, :] < end[:, None], block_products(query, key, CAP), float("-inf"))
                if REACH:
                    products = within(products, position, own, REACH)
                m, l, o, total_m, total_l, total_o = _absorb_for_some(
                    m, l, o, total_m, total_l, total_o, products, value, taking & crossed, crossed, SCALE, REACH
                )
    total_m, total_l, total_o = fold(total_m, total_l, total_o, m, l, o)
    if SINKS:
        head = kv_head * GROUP + tl.arange(0, COLUMNS) % GROUP
        total_l, total_o = add_sink(total_m, total_l, total_o, sinks, head, used)
    first = (first_row.to(tl.int64) * KV_HEADS + kv_head) * GROUP * HEAD_DIM
    elements = offset[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    total_l = tl.where(used, total_l, 1.0)
    result = rounded(total_o / total_l[:, None], tl.bfloat16)
    tl.store(out + first + elements, result, mask=used[:, None])


def tree_attention(
    q: torch.Tensor,
    keys: KVRows,
    values: KVRows,
    page_table: torch.Tensor,
    page_size: int,
    segments: torch.Tensor,
    paths: torch.Tensor,
    depths: torch.Tensor,
    leaves: torch.Tensor,
    write_slots: torch.Tensor,
    out: torch.Tensor,
    *,
    columns: int,
    stages: int = STAGES,
    form: AttentionForm = FULL,
    sinks: torch.Tensor | None = None,
) -> None:
    """out[row] = softmax(q K^T / sqrt(head_dim)) V of the rows of all segments, each over its prefix and its path.

    bfloat16 q and out [rows, heads, head_dim], keys and values [kv_heads, slots, head_dim] of one layer, written for
    all rows. All else int32: page_table [lines, pages]; segments [S, 4] as of `prefix_attention`, a tree's of
    columns // (heads // kv_heads) rows each but for its last; by row `paths` [rows, P], `depths` and the slots written
    as of `tail_attention`, and `leaves` as of `tree_leaves` for segments of so many rows. `columns`, 64 or 128, and
    `stages` change no bit. head_dim is one of HEAD_DIMS. No kernel of the same pass writes segments. sinks: float32
    [heads], one more score of each head, which has no value.
    """
    _, heads, head_dim = q.shape
    kv_heads = len(keys)
    check_layout(q, keys, values, page_table)
    k, v = pointers_of(keys), pointers_of(values)
    assert out.is_contiguous()
    assert form.sinks == (sinks is not None)
    assert paths.is_contiguous()
    assert paths.shape[1] <= BLOCK
    launch(
        _tree_attention,
        (kv_heads, len(segments)),
        q,
        k.rows,
        k.scales,
        v.rows,
        v.scales,
        page_table,
        segments,
        paths,
        depths,
        leaves,
        write_slots,
        out,
        q if sinks is None else sinks,
        page_table.stride(0),
        keys.stride(0),
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        PATH=paths.shape[1],
        HEAD_DIM=head_dim,
        COLUMNS=columns,
        PAGE_SIZE=page_size,
        SCALE=score_scale(head_dim, form),
        CAP=cap_scale(head_dim, form),
        REACH=form.reach,
        SINKS=form.sinks,
        STAGES=stages_of(stages, head_dim),
        warps=warps_of(columns),
    )


def tree_attention_reference(
    q: torch.Tensor,
    keys: KVRows,
    values: KVRows,
    page_table: torch.Tensor,
    page_size: int,
    segments: torch.Tensor,
    paths: torch.Tensor,
    depths: torch.Tensor,
    leaves: torch.Tensor,
    write_slots: torch.Tensor,
    out: torch.Tensor,
    *,
    columns: int,
    stages: int = STAGES,  # noqa: ARG001  a twin takes what its kernel takes
    form: AttentionForm = FULL,
    sinks: torch.Tensor | None = None,
) -> None:
    """The same in torch, in float64, row by row."""
    for first, rows, line, prefix_length in segments.tolist():
        assert rows * (q.shape[1] // len(keys)) <= columns
        committed = committed_slots(page_table, page_size, line, 0, prefix_length)
        for row in range(first, first + rows):
            path = paths[int(leaves[row]), : int(depths[row])]
            slots = torch.cat([committed, write_slots[path.long()].long()])
            out[row] = attend(q[row], keys, values, slots, form, sinks)
