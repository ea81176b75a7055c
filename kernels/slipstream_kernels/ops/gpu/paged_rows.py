"""Keys, values and queries on their way to attention's products: slots by page tables and paths, rows and columns."""

from __future__ import annotations

import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.attention_state import PLAIN
from slipstream_kernels.ops.gpu.fp8_rows import numbers_of


@triton.jit
def paged_slots(
    pages: tl.tensor,
    positions: tl.tensor,
    PAGE_SIZE: tl.constexpr,
    seen: tl.tensor | None = None,
    FRESH: tl.constexpr = False,
) -> tl.tensor:
    """int32 slots of `positions` through a line of the page table; where not `seen`, a slot of page 0.

    FRESH ones, of `seen` positions, are read past the L1 cache.
    """
    entries = pages + positions // PAGE_SIZE
    if seen is None:
        page = tl.load(entries)
    elif FRESH:
        page = tl.load(entries, mask=seen, other=0, cache_modifier=".cg")
    else:
        page = tl.load(entries, mask=seen, other=0)
    return page * PAGE_SIZE + positions % PAGE_SIZE


@triton.jit
def path_slots(
    pages: tl.tensor,
    path: tl.tensor,
    write_slots: tl.tensor,
    position: tl.tensor,
    prefix_length: tl.tensor,
    end: tl.tensor,
    PAGE_SIZE: tl.constexpr,
) -> tl.tensor:
    """int32 slots of a row's `position`s below `end`: of the prefix by the page table, of ancestors by their rows."""
    committed = position < prefix_length
    drafted = (position < end) & (position >= prefix_length)
    ancestor = tl.load(path + position - prefix_length, mask=drafted, other=0, cache_modifier=".cg")
    own = tl.load(write_slots + ancestor, mask=drafted, other=0, cache_modifier=".cg")
    return tl.where(committed, paged_slots(pages, position, PAGE_SIZE, committed, True), own)


@triton.jit
def load_rows(
    base: tl.tensor,
    slots: tl.tensor,
    HEAD_DIM: tl.constexpr,
    seen: tl.tensor | None = None,
    FRESH: tl.constexpr = False,
    NUMBER: tl.constexpr | None = None,
) -> tl.tensor:
    """[BLOCK, HEAD_DIM] of the slots of one head's keys or values; zeros where not `seen`. FRESH as above.

    bfloat16 rows as they are; of codes, whose dtype tells them, numbers in NUMBER without their scales.
    """
    addresses = base + slots.to(tl.int64)[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    if seen is None:
        rows = tl.load(addresses)
    elif FRESH:
        rows = tl.load(addresses, mask=seen[:, None], other=0, cache_modifier=".cg")
    else:
        rows = tl.load(addresses, mask=seen[:, None], other=0)
    return numbers_of(rows, NUMBER) if rows.dtype == tl.uint8 else rows


@triton.jit
def load_scales(
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    slots: tl.tensor,
    TILE: tl.constexpr,
    seen: tl.tensor | None = None,
    FRESH: tl.constexpr = False,
) -> tuple[tl.tensor, tl.tensor]:
    """float32 [BLOCK] each of the slots of one head's keys and values, zeros where not `seen`; PLAIN, anything.

    They are read as one tensor, of no fewer numbers than a program of four warps has threads: of fewer a compiler has
    every thread read all those which its products need.
    """
    if TILE == PLAIN:
        return slots, slots
    else:  # noqa: RET505  what does not compile must not be looked at
        places = tl.join(key_scales + slots, value_scales + slots)
        if seen is None:
            both = tl.load(places)
        elif FRESH:
            both = tl.load(places, mask=seen[:, None], other=0.0, cache_modifier=".cg")
        else:
            both = tl.load(places, mask=seen[:, None], other=0.0)
        of_keys, of_values = tl.split(both)
        return of_keys, of_values


@triton.jit
def load_columns(
    q: tl.tensor,
    first_row: tl.tensor,
    rows: tl.tensor,
    kv_head: tl.tensor,
    heads: tl.tensor,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Queries of consecutive rows' heads of one KV head, as columns in the order (row, head).

    Returns bf16 [COLUMNS, HEAD_DIM], the columns' heads counted from the KV head's first of `first_row`, and whether a
    column is one.
    """
    column = tl.arange(0, COLUMNS)
    used = column < rows * GROUP
    offset = column // GROUP * heads + column % GROUP
    first = q + (first_row.to(tl.int64) * heads + kv_head * GROUP) * HEAD_DIM
    addresses = first + offset[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    return tl.load(addresses, mask=used[:, None], other=0.0), offset, used
