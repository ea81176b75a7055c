"""What an accepted path leaves behind: its keys and values in page slots, its feature rows packed."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.tree_walk import RESULT_WIDTH
from slipstream_kernels.token_tree import MAX_ROWS

_NODES = 16
"""Accepted nodes copied at a time."""
_BLOCK = 2048


@triton.jit
def _compact_kv(
    keys: tl.tensor,
    values: tl.tensor,
    result: tl.tensor,
    deciding: tl.tensor,
    logit_rows: tl.tensor,
    write_slots: tl.tensor,
    page_table: tl.tensor,
    pages: int,
    page_size: int,
    head_stride: int,
    HEAD_DIM: tl.constexpr,
    NODES: tl.constexpr,
    RESULT: tl.constexpr,
) -> None:
    """One head of one layer for one item a program; a padding item has accepted nothing."""
    release_next()
    wait_for_previous()
    head = tl.program_id(0).to(tl.int64) * head_stride
    item = tl.program_id(1)
    columns = tl.arange(0, HEAD_DIM)[None, :]
    accepted = tl.load(result + item * RESULT)
    first = tl.load(deciding + item * 4)
    line = tl.load(deciding + item * 4 + 2)
    base = tl.load(deciding + item * 4 + 3)
    for start in range(0, accepted, NODES):
        order = start + tl.arange(0, NODES)
        inside = order < accepted
        node = tl.load(result + item * RESULT + 2 + order, mask=inside, other=0)
        row = tl.load(logit_rows + first + 1 + node, mask=inside, other=0)
        source = tl.load(write_slots + row, mask=inside, other=0)
        position = base + order
        page = tl.load(page_table + line.to(tl.int64) * pages + position // page_size, mask=inside, other=0)
        target = page.to(tl.int64) * page_size + position % page_size
        source = head + source.to(tl.int64)[:, None] * HEAD_DIM + columns
        target = head + target[:, None] * HEAD_DIM + columns
        mask = inside[:, None] & (columns < HEAD_DIM)
        tl.store(keys + target, tl.load(keys + source, mask=mask), mask=mask)
        tl.store(values + target, tl.load(values + source, mask=mask), mask=mask)


def compact_kv(
    keys: torch.Tensor,
    values: torch.Tensor,
    result: torch.Tensor,
    deciding: torch.Tensor,
    logit_rows: torch.Tensor,
    write_slots: torch.Tensor,
    page_table: torch.Tensor,
    page_size: int,
) -> None:
    """Copy the accepted nodes' keys and values, in all layers, to the page slots of positions base, base + 1, ...

    In place: bfloat16 keys, values [layers, kv_heads, slots, head_dim], contiguous. Inputs, int32: `result` and the
    `deciding` and `logit_rows` of `tree_walk`; write_slots [rows]; page_table [lines, pages]. The slots read, which are
    scratch, and the slots written are disjoint.
    """
    layers, kv_heads, _, head_dim = keys.shape
    launch(
        _compact_kv,
        (layers * kv_heads, len(deciding)),
        keys,
        values,
        result,
        deciding,
        logit_rows,
        write_slots,
        page_table,
        page_table.shape[1],
        page_size,
        keys.stride(1),
        HEAD_DIM=head_dim,
        NODES=_NODES,
        RESULT=RESULT_WIDTH,
    )


def compact_kv_reference(
    keys: torch.Tensor,
    values: torch.Tensor,
    result: torch.Tensor,
    deciding: torch.Tensor,
    logit_rows: torch.Tensor,
    write_slots: torch.Tensor,
    page_table: torch.Tensor,
    page_size: int,
) -> None:
    """The same in torch."""
    for (first, _, line, base), outcome in zip(deciding.tolist(), result, strict=True):
        nodes = outcome[2 : 2 + int(outcome[0])].long()
        source = write_slots[logit_rows[first + 1 + nodes].long()].long()
        positions = base + torch.arange(len(nodes), device=nodes.device)
        target = page_table[line, positions // page_size].long() * page_size + positions % page_size
        keys[:, :, target] = keys[:, :, source]
        values[:, :, target] = values[:, :, source]


@triton.jit
def _compact_rows(
    source: tl.tensor,
    result: tl.tensor,
    deciding: tl.tensor,
    logit_rows: tl.tensor,
    out: tl.tensor,
    counts: tl.tensor,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    RESULT: tl.constexpr,
) -> None:
    """A block of columns of one packed row a program."""
    release_next()
    wait_for_previous()
    item = tl.program_id(0) // WIDTH
    order = tl.program_id(0) % WIDTH
    chunk = tl.program_id(1)
    first = tl.load(deciding + item * 4)
    decides = tl.load(deciding + item * 4 + 1) > 0
    count = tl.where(decides, tl.load(result + item * RESULT) + 1, 0)
    tl.store(counts + item, count, mask=(order == 0) & (chunk == 0))
    if order < count:
        node = tl.load(result + item * RESULT + 1 + order, mask=order > 0, other=-1)
        row = tl.load(logit_rows + first + 1 + node)
        columns = chunk * BLOCK + tl.arange(0, BLOCK)
        inside = columns < SIZE
        moved = tl.load(source + row.to(tl.int64) * SIZE + columns, mask=inside)
        tl.store(out + tl.program_id(0).to(tl.int64) * SIZE + columns, moved, mask=inside)


def compact_rows(
    source: torch.Tensor,
    result: torch.Tensor,
    deciding: torch.Tensor,
    logit_rows: torch.Tensor,
    out: torch.Tensor,
    counts: torch.Tensor,
) -> None:
    """Pack feature rows by item: the root's, then those of accepted nodes in order.

    Inputs: source [rows, size]; int32 `result`, `deciding` and `logit_rows` of `tree_walk`. Outputs: out
    [items, 64, size] of source's dtype, whose rows beyond counts are left as they are; int32 counts [items], accepted
    nodes + 1, or 0 for a padding item.
    """
    size = source.shape[1]
    block = min(_BLOCK, triton.next_power_of_2(size))
    launch(
        _compact_rows,
        (len(deciding) * MAX_ROWS, triton.cdiv(size, block)),
        source,
        result,
        deciding,
        logit_rows,
        out,
        counts,
        SIZE=size,
        BLOCK=block,
        WIDTH=MAX_ROWS,
        RESULT=RESULT_WIDTH,
    )


def compact_rows_reference(
    source: torch.Tensor,
    result: torch.Tensor,
    deciding: torch.Tensor,
    logit_rows: torch.Tensor,
    out: torch.Tensor,
    counts: torch.Tensor,
) -> None:
    """The same in torch."""
    for item, (first, rows, _, _) in enumerate(deciding.tolist()):
        count = int(result[item, 0]) + 1 if rows else 0
        counts[item] = count
        if count:
            places = torch.cat([result.new_zeros(1), result[item, 2 : 1 + count] + 1]).long()
            out[item, :count] = source[logit_rows[first + places].long()]
