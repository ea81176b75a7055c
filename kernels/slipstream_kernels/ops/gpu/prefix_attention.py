"""Attention to the blocks of a prefix below the one where it ends: a state for each split, by row and query head.

Rows that share a prefix (the nodes of a tree and its root) share the reading of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.attention_form import FULL, AttentionForm
from slipstream_kernels.ops.gpu.attention_reference import committed_slots
from slipstream_kernels.ops.gpu.attention_state import (
    NO_PEAK,
    AttentionPartials,
    absorb_block,
    block_products,
    cap_scale,
    check_layout,
    empty_state,
    load_columns,
    load_rows,
    paged_slots,
    score_scale,
    stages_of,
    warps_of,
    window_start,
    within,
)
from slipstream_kernels.ops.gpu.fp8_rows import pointers_of
from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.position_splits import (
    BLOCK,
    num_splits,
    own_block,
    split_bounds,
    start_of_own_block,
    start_of_split,
)
from slipstream_kernels.ops.kv_cache.kv_codes import KVRows, rows_at

PREFIX_COLUMNS = 64
"""Rows of a segment times heads of a group, at most."""

_MULTIPROCESSORS = 132


@dataclass(frozen=True, slots=True)
class PrefixPrograms:
    """How a launch fills the GPU: a matter of time alone."""

    programs: int
    """That share a launch's items: as many as an H200 holds at a time."""
    stages: int
    """Of Triton's pipeline: two blocks are on their way while one is computed, their pages two blocks ahead of them."""
    registers: int | None
    """Of a thread at most, in tiles of 64 columns; None: as many as the compiler likes."""


ROWS_PROGRAMS = PrefixPrograms(_MULTIPROCESSORS * 2, 5, None)
"""Of bfloat16 rows, whose bytes bind."""
CODES_PROGRAMS = PrefixPrograms(_MULTIPROCESSORS * 3, 4, 168)
"""Of codes: what binds is how long a block takes from its bytes to its products, so that more are at work at a time."""

_NARROW = 64
_BLOCK = tl.constexpr(BLOCK)
_NO_ITEM = tl.constexpr(2**31 - 1)


@triton.jit
def _item(
    index: tl.tensor,
    work: tl.tensor,
    ends: tl.tensor,
    segments: tl.tensor,
    item_offsets: tl.tensor,
    KV_HEADS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """KV head, first row, rows, line, split and prefix length of the `index`-th item from the last.

    A context's last splits are its widest: they come first.
    """
    place = work - 1 - index
    item = place // KV_HEADS
    segment = tl.sum((ends <= item).to(tl.int32), 0)
    split = item - tl.load(item_offsets + segment, cache_modifier=".cg")
    entry = segments + segment * 4
    first_row = tl.load(entry, cache_modifier=".cg")
    rows = tl.load(entry + 1, cache_modifier=".cg")
    line = tl.load(entry + 2, cache_modifier=".cg")
    prefix_length = tl.load(entry + 3, cache_modifier=".cg")
    return place % KV_HEADS, first_row, rows, line, split, prefix_length


@triton.jit
def _prefix_attention(
    q: tl.tensor,
    keys: tl.tensor,
    key_scales: tl.tensor | None,
    values: tl.tensor,
    value_scales: tl.tensor | None,
    page_table: tl.tensor,
    segments: tl.tensor,
    item_offsets: tl.tensor,
    depths: tl.tensor,
    m_out: tl.tensor,
    l_out: tl.tensor,
    o_out: tl.tensor,
    num_segments: int,
    pages_stride: int,
    head_stride: int,
    splits_stride: int,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    SEGMENTS: tl.constexpr,
    SCALE: tl.constexpr,
    CAP: tl.constexpr,
    REACH: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Works off items and KV heads, a program every num_programs-th.

    Waits before it releases: `tail_attention` begins to read when all programs have waited.
    """
    listed = tl.arange(0, SEGMENTS)
    ends = tl.load(item_offsets + 1 + listed, mask=listed < num_segments, other=_NO_ITEM, cache_modifier=".cg")
    work = tl.load(item_offsets + num_segments, cache_modifier=".cg") * KV_HEADS
    for index in range(tl.program_id(0), work, tl.num_programs(0)):
        # Read for each item anew: Triton 3.6 takes bounds of the inner loop that the outer one carries from its start.
        kv_head, first_row, rows, line, split, length = _item(index, work, ends, segments, item_offsets, KV_HEADS)
        wait_for_previous()
        release_next()
        pages = page_table + line.to(tl.int64) * pages_stride
        head_offset = kv_head.to(tl.int64) * head_stride
        first_scale = kv_head.to(tl.int64) * (head_stride // HEAD_DIM)
        query, offset, used = load_columns(q, first_row, rows, kv_head, KV_HEADS * GROUP, GROUP, HEAD_DIM, COLUMNS)
        m, l, o = empty_state(COLUMNS, HEAD_DIM)
        begin, stop = start_of_split(split), tl.minimum(start_of_split(split + 1), start_of_own_block(length))
        if REACH:
            begin = tl.maximum(begin, window_start(length - 1, REACH))
            row_of = first_row + tl.arange(0, COLUMNS) // GROUP
            own = length - 1 + tl.load(depths + row_of, mask=used, other=0)
            used = used & (begin < stop)
        for start in tl.range(begin, stop, _BLOCK, num_stages=STAGES):
            position = start + tl.arange(0, _BLOCK)
            slots = paged_slots(pages, position, PAGE_SIZE)
            key = load_rows(keys + head_offset, slots, HEAD_DIM, scales=key_scales, first_scale=first_scale)
            value = load_rows(values + head_offset, slots, HEAD_DIM, scales=value_scales, first_scale=first_scale)
            products = block_products(query, key, CAP)
            if REACH:
                products = within(products, position, own, REACH)
            m, l, o = absorb_block(m, l, o, products, value, SCALE)
        first = (first_row.to(tl.int64) * KV_HEADS + kv_head) * GROUP * splits_stride + split
        column = offset * splits_stride
        tl.store(m_out + first + column, m, mask=used)
        tl.store(l_out + first + column, l, mask=used)
        elements = column[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
        tl.store(o_out + first * HEAD_DIM + elements, o, mask=used[:, None])
    wait_for_previous()


def prefix_attention(
    q: torch.Tensor,
    keys: KVRows,
    values: KVRows,
    page_table: torch.Tensor,
    page_size: int,
    segments: torch.Tensor,
    item_offsets: torch.Tensor,
    partials: AttentionPartials,
    *,
    columns: int,
    programs: PrefixPrograms | None = None,
    form: AttentionForm = FULL,
    depths: torch.Tensor | None = None,
) -> None:
    """Write the states of the splits below the block where each segment's prefix ends, the last perhaps in part.

    Where `form` has a window or chunks, splits that the prefix's last position does not see are not written; int32
    `depths` [rows] as of `tail_attention` say what the other rows see.

    bfloat16 q [rows, heads, head_dim], keys and values [kv_heads, slots, head_dim] of one layer; int32 page_table
    [lines, pages]. int32 segments [S, 4]: first row, number of rows (0 for padding), line, prefix length; a segment
    has at most columns // (heads // kv_heads) rows. int32 item_offsets [S + 1]: cumulative number of splits that hold
    a block below the prefix's last. `columns`, 64 or 128, is the width of a program's products; it changes no bit, nor
    do `programs`. head_dim is one of HEAD_DIMS. No kernel of the same pass writes segments and offsets:
    they are read while those may still run.
    """
    rows, heads, head_dim = q.shape
    kv_heads = len(keys)
    check_layout(q, keys, values, page_table)
    k, v = pointers_of(keys), pointers_of(values)
    cut = programs or (ROWS_PROGRAMS if k.scales is None else CODES_PROGRAMS)
    assert partials.l.shape[:2] == (rows, heads)
    assert depths is not None or not form.reach
    launch(
        _prefix_attention,
        (cut.programs,),
        q,
        k.rows,
        k.scales,
        v.rows,
        v.scales,
        page_table,
        segments,
        item_offsets,
        segments if depths is None else depths,
        partials.m,
        partials.l,
        partials.o,
        len(segments),
        page_table.stride(0),
        keys.stride(0),
        partials.l.shape[2],
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        HEAD_DIM=head_dim,
        COLUMNS=columns,
        PAGE_SIZE=page_size,
        SEGMENTS=max(triton.next_power_of_2(len(segments)), 2),
        SCALE=score_scale(head_dim, form),
        CAP=cap_scale(head_dim, form),
        REACH=form.reach,
        STAGES=stages_of(cut.stages, head_dim),
        warps=warps_of(columns),
        maxnreg=cut.registers if columns == _NARROW else None,
    )


def prefix_attention_reference(
    q: torch.Tensor,
    keys: KVRows,
    values: KVRows,
    page_table: torch.Tensor,
    page_size: int,
    segments: torch.Tensor,
    item_offsets: torch.Tensor,
    partials: AttentionPartials,
    *,
    columns: int,
    programs: PrefixPrograms | None = None,  # noqa: ARG001  a twin takes what its kernel takes
    form: AttentionForm = FULL,
    depths: torch.Tensor | None = None,
) -> None:
    """The same in torch, in float64; splits that are not to be written are empty."""
    kv_heads, _, head_dim = keys.shape
    items = item_offsets.diff().tolist()
    for (first, rows, line, prefix_length), splits in zip(segments.tolist(), items, strict=True):
        assert rows * (q.shape[1] // kv_heads) <= columns
        full = own_block(prefix_length)
        assert splits == (num_splits(full) if rows else 0)
        query = q[first : first + rows].double().unflatten(1, (kv_heads, -1))
        for split in range(splits):
            begin, end = split_bounds(split)
            slots = committed_slots(page_table, page_size, line, begin, min(end, full))
            products = torch.einsum("rkgd,kpd->rkgp", query, rows_at(keys, slots).double())
            products = torch.tanh(products * cap_scale(head_dim, form)) if form.cap else products
            scores = products * score_scale(head_dim, form)
            if form.reach:
                assert depths is not None
                own = prefix_length - 1 + depths[first : first + rows]
                first_seen = torch.tensor([form.first_seen(each) for each in own.tolist()], device=q.device)
                position = torch.arange(begin, min(end, full), device=q.device)
                scores.masked_fill_((position < first_seen[:, None])[:, None, None], -torch.inf)
            peak = scores.amax(-1).ceil().clamp(min=NO_PEAK.value)
            weights = torch.exp2(scores - peak[..., None])
            target = (slice(first, first + rows), slice(None), split)
            partials.m[target] = peak.flatten(1).float()
            partials.l[target] = weights.sum(-1).flatten(1).float()
            sums = torch.einsum("rkgp,kpd->rkgd", weights, rows_at(values, slots).double())
            partials.o[target] = sums.flatten(1, 2).float()
