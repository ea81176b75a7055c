"""Attention of a prompt's rows, in tiles of consecutive positions: bits equal to the decode path's.

A tile's positions lie in one block, so that all its rows see the same full blocks and the same splits.
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
    raised,
    score_scale,
    stages_of,
    warps_of,
    window_start,
    within,
)
from slipstream_kernels.ops.gpu.fp8_rows import pointers_of
from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.position_splits import BLOCK, is_split_bound
from slipstream_kernels.ops.gpu.rounding import rounded
from slipstream_kernels.ops.kv_cache.kv_codes import KVRows

PREFILL_COLUMNS = 64
"""Query rows of a program's tile times heads of a group, at most."""

STAGES = 5
"""Of Triton's pipeline: two blocks are on their way while one is computed, their pages two blocks ahead of them."""

PROGRAMS = 144
"""As many are faster at reading whole sequences than `prefix_attention` is with their splits."""

_BLOCK = tl.constexpr(BLOCK)


@triton.jit
def _prefill_attention(
    q: tl.tensor,
    keys: tl.tensor,
    key_scales: tl.tensor | None,
    values: tl.tensor,
    value_scales: tl.tensor | None,
    page_table: tl.tensor,
    tiles: tl.tensor,
    out: tl.tensor,
    sinks: tl.tensor,
    pages_stride: int,
    head_stride: int,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    SCALE: tl.constexpr,
    CAP: tl.constexpr,
    REACH: tl.constexpr,
    SINKS: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """One tile's heads of one KV head a program. The own block is the last of the loop, so that it is fetched ahead."""
    kv_head = tl.program_id(0)
    tile = tiles + tl.program_id(1) * 4
    first_row = tl.load(tile, cache_modifier=".cg")
    rows = tl.load(tile + 1, cache_modifier=".cg")
    line = tl.load(tile + 2, cache_modifier=".cg")
    first_position = tl.load(tile + 3, cache_modifier=".cg")
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
    full = first_position // _BLOCK * _BLOCK
    last = first_position + rows - 1
    own = first_position + tl.arange(0, COLUMNS) // GROUP
    begin = 0
    if REACH:
        begin = window_start(first_position, REACH)
    for start in tl.range(begin, full + _BLOCK, _BLOCK, num_stages=STAGES):
        position = start + tl.arange(0, _BLOCK)
        # Positions behind the tile's last are read as that one: no weight is given to them.
        slots = paged_slots(pages, tl.minimum(position, last), PAGE_SIZE)
        key = load_rows(keys, slots, HEAD_DIM, scales=key_scales, first_scale=first_scale)
        value = load_rows(values, slots, HEAD_DIM, scales=value_scales, first_scale=first_scale)
        products = block_products(query, key, CAP)
        if REACH:
            products = within(products, position, own, REACH)
        # The branch needs the products, so that the last block's values are still being summed while they are computed.
        if is_split_bound(start) | (start == full):
            total_m, total_l, total_o = fold(total_m, total_l, total_o, m, l, o)
            products = tl.where(position[None, :] <= own[:, None], products, float("-inf"))
            m, l, o = block_peak(products, SCALE, REACH), tl.zeros_like(l), tl.zeros_like(o)
        else:
            m, l, o = raised(m, l, o, tl.maximum(m, block_peak(products, SCALE)))
        l, o = add_block(m, l, o, products, value, SCALE)
    total_m, total_l, total_o = fold(total_m, total_l, total_o, m, l, o)
    if SINKS:
        head = kv_head * GROUP + tl.arange(0, COLUMNS) % GROUP
        total_l, total_o = add_sink(total_m, total_l, total_o, sinks, head, used)
    first = (first_row.to(tl.int64) * KV_HEADS + kv_head) * GROUP * HEAD_DIM
    elements = offset[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    if REACH:
        total_l = tl.where(used, total_l, 1.0)
    result = rounded(total_o / total_l[:, None], tl.bfloat16)
    tl.store(out + first + elements, result, mask=used[:, None])


def prefill_tiles(
    first_row: int, rows: int, line: int, first_position: int, group: int, columns: int = PREFILL_COLUMNS
) -> list[tuple[int, int, int, int]]:
    """Tiles of `rows` consecutive positions of one prompt for `prefill_attention`, the last positions first.

    A tile costs in proportion to its first position: a pass runs fastest with the tiles of all its prompts in
    descending order of it.
    """
    tiles = []
    end = first_position + rows
    position = first_position
    while position < end:
        stop = min(position + columns // group, position // BLOCK * BLOCK + BLOCK, end)
        tiles.append((first_row + position - first_position, stop - position, line, position))
        position = stop
    return tiles[::-1]


def prefill_attention(
    q: torch.Tensor,
    keys: KVRows,
    values: KVRows,
    page_table: torch.Tensor,
    page_size: int,
    tiles: torch.Tensor,
    out: torch.Tensor,
    *,
    columns: int = PREFILL_COLUMNS,
    stages: int = STAGES,
    form: AttentionForm = FULL,
    sinks: torch.Tensor | None = None,
) -> None:
    """out[row] = softmax(q K^T / sqrt(head_dim)) V of the tiles' rows over their positions and all before them.

    bfloat16 q and out [rows, heads, head_dim], keys and values [kv_heads, slots, head_dim] of one layer, written for
    all rows; int32 page_table [lines, pages]. int32 tiles [T, 4] as `prefill_tiles` cuts them: first row, number of
    rows (0 for padding), line, first position. `columns` and `stages` change no bit. head_dim is one of HEAD_DIMS. No
    kernel of the same pass writes tiles: they are read while those may still run. sinks: float32 [heads], one more
    score of each head, which has no value.
    """
    _, heads, head_dim = q.shape
    kv_heads = len(keys)
    check_layout(q, keys, values, page_table)
    k, v = pointers_of(keys), pointers_of(values)
    assert out.is_contiguous()
    assert form.sinks == (sinks is not None)
    launch(
        _prefill_attention,
        (kv_heads, len(tiles)),
        q,
        k.rows,
        k.scales,
        v.rows,
        v.scales,
        page_table,
        tiles,
        out,
        q if sinks is None else sinks,
        page_table.stride(0),
        keys.stride(0),
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
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


def prefill_attention_reference(
    q: torch.Tensor,
    keys: KVRows,
    values: KVRows,
    page_table: torch.Tensor,
    page_size: int,
    tiles: torch.Tensor,
    out: torch.Tensor,
    *,
    columns: int = PREFILL_COLUMNS,
    stages: int = STAGES,  # noqa: ARG001  a twin takes what its kernel takes
    form: AttentionForm = FULL,
    sinks: torch.Tensor | None = None,
) -> None:
    """The same in torch, in float64, row by row."""
    for first_row, rows, line, first_position in tiles.tolist():
        assert rows * (q.shape[1] // len(keys)) <= columns
        slots = committed_slots(page_table, page_size, line, 0, first_position + rows)
        for i in range(rows):
            out[first_row + i] = attend(q[first_row + i], keys, values, slots[: first_position + i + 1], form, sinks)
