"""Copies hidden states of committed rows out of a pass: prompt rows, roots and accepted nodes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.tree_walk import RESULT_WIDTH

ENTRY = 4
"""Columns of `rows`."""
_BLOCK = 1024


@triton.jit
def _copy_states(
    states: tl.tensor,
    result: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    target: tl.tensor,
    stride: int,
    HIDDEN: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
    ENTRY: tl.constexpr,
    RESULT: tl.constexpr,
) -> None:
    """One program: a block of columns of one capture layer of one row."""
    release_next()
    wait_for_previous()
    entry = rows + tl.program_id(0) * ENTRY
    row = tl.load(entry)
    order = tl.load(entry + 1)
    outcome = result + tl.load(entry + 2) * RESULT
    offset = tl.load(entry + 3)
    accepted = tl.load(outcome, mask=order >= 0, other=0)
    if order < accepted:
        row += tl.load(outcome + 2 + order, mask=order >= 0, other=-1).to(tl.int64) + 1
        part = tl.program_id(1) // CHUNKS
        column = (tl.program_id(1) % CHUNKS) * BLOCK + tl.arange(0, BLOCK)
        inside = column < HIDDEN
        source = tl.load(columns + part).to(tl.int64) * HIDDEN
        moved = tl.load(states + row * stride + source + column, mask=inside)
        tl.store(target + offset + part * HIDDEN + column, moved, mask=inside)


def copy_states(
    states: torch.Tensor,
    result: torch.Tensor,
    rows: torch.Tensor,
    columns: torch.Tensor,
    target: torch.Tensor,
    hidden: int,
) -> None:
    """Copy the hidden states of rows, chosen layers side by side, to offsets in `target`.

    states: bfloat16 [pass rows, layers * hidden], contiguous.
    result: int32, of `tree_walk`.
    rows: int64 [n, 4], (row, order, item, offset).
        order == -1: copy `row`.
        order == k: copy the row of item's k-th accepted node below the root in `row`; skip if it accepted <= k.
    columns: int32 [k], indices of the layers in a row of `states`.
    target: bfloat16 [any], written: k * hidden numbers from `offset` on for each copied row.
    """
    block = min(_BLOCK, triton.next_power_of_2(hidden))
    chunks = triton.cdiv(hidden, block)
    launch(
        _copy_states,
        (len(rows), len(columns) * chunks),
        states,
        result,
        rows,
        columns,
        target,
        states.shape[1],
        HIDDEN=hidden,
        CHUNKS=chunks,
        BLOCK=block,
        ENTRY=ENTRY,
        RESULT=RESULT_WIDTH,
    )


def copy_states_reference(
    states: torch.Tensor,
    result: torch.Tensor,
    rows: torch.Tensor,
    columns: torch.Tensor,
    target: torch.Tensor,
    hidden: int,
) -> None:
    """The same in torch."""
    width = len(columns) * hidden
    for row, order, item, offset in rows.tolist():
        if order >= 0 and order >= int(result[item, 0]):
            continue
        source = row if order < 0 else row + 1 + int(result[item, 2 + order])
        target[offset : offset + width] = states[source].unflatten(0, (-1, hidden))[columns.long()].flatten()
