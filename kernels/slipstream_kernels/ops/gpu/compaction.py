"""What an accepted path leaves behind: its keys and values in page slots."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.fp8_rows import pointers_of
from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.tree_walk import RESULT_WIDTH
from slipstream_kernels.ops.kv_cache.kv_codes import KVRows, copy_rows

_NODES = 16
"""Accepted nodes copied at a time."""


@triton.jit
def _compact_kv(
    keys: tl.tensor,
    key_scales: tl.tensor | None,
    values: tl.tensor,
    value_scales: tl.tensor | None,
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
    """One head of one layer for one item a program; a padding item, or one that is left out, has accepted nothing."""
    release_next()
    wait_for_previous()
    head = tl.program_id(0).to(tl.int64) * head_stride
    item = tl.program_id(1)
    columns = tl.arange(0, HEAD_DIM)[None, :]
    accepted = tl.load(result + item * RESULT, mask=tl.load(deciding + item * 4 + 1) >= 0, other=0)
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
        if key_scales is not None:
            first_scale = head // HEAD_DIM
            scale, new = first_scale + source.to(tl.int64), first_scale + target
            tl.store(key_scales + new, tl.load(key_scales + scale, mask=inside), mask=inside)
            tl.store(value_scales + new, tl.load(value_scales + scale, mask=inside), mask=inside)
        source = head + source.to(tl.int64)[:, None] * HEAD_DIM + columns
        target = head + target[:, None] * HEAD_DIM + columns
        mask = inside[:, None] & (columns < HEAD_DIM)
        tl.store(keys + target, tl.load(keys + source, mask=mask), mask=mask)
        tl.store(values + target, tl.load(values + source, mask=mask), mask=mask)


def compact_kv(
    keys: KVRows,
    values: KVRows,
    result: torch.Tensor,
    deciding: torch.Tensor,
    logit_rows: torch.Tensor,
    write_slots: torch.Tensor,
    page_table: torch.Tensor,
    page_size: int,
) -> None:
    """Copy the accepted nodes' keys and values, in all layers, to the page slots of positions base, base + 1, ...

    In place: keys, values [layers, kv_heads, slots, head_dim], bfloat16 or codes with their scales, contiguous. Inputs,
    int32: `result` and the `deciding` and `logit_rows` of `tree_walk`; write_slots [rows]; page_table [lines, pages].
    The slots read, which are scratch, and the slots written are disjoint.
    """
    layers, kv_heads, _, head_dim = keys.shape
    k, v = pointers_of(keys), pointers_of(values)
    launch(
        _compact_kv,
        (layers * kv_heads, len(deciding)),
        k.rows,
        k.scales,
        v.rows,
        v.scales,
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
    keys: KVRows,
    values: KVRows,
    result: torch.Tensor,
    deciding: torch.Tensor,
    logit_rows: torch.Tensor,
    write_slots: torch.Tensor,
    page_table: torch.Tensor,
    page_size: int,
) -> None:
    """The same in torch."""
    for (first, count, line, base), outcome in zip(deciding.tolist(), result, strict=True):
        nodes = outcome[2 : 2 + int(outcome[0])].long() if count >= 0 else outcome[:0].long()
        source = write_slots[logit_rows[first + 1 + nodes].long()].long()
        positions = base + torch.arange(len(nodes), device=nodes.device)
        target = page_table[line, positions // page_size].long() * page_size + positions % page_size
        copy_rows(keys, source, target)
        copy_rows(values, source, target)
