"""Rows of a pass that was queued before the one in front of it had decided: where each root stands, and its tree.

The tree is one that was drafted on the device; a request without one has the root's row alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, wait_for_previous
from slipstream_kernels.ops.gpu.position_splits import (
    num_splits,
    own_block,
    splits_below,
    start_of_own_block,
    start_of_split,
)
from slipstream_kernels.ops.gpu.tree_walk import RESULT_WIDTH
from slipstream_kernels.token_tree import MAX_ROWS

_SEGMENTS = 256
"""Taken at a time."""


@triton.jit
def _select_outcomes(
    choices: tl.tensor,
    nodes: tl.tensor,
    result: tl.tensor,
    page_table: tl.tensor,
    pages: int,
    page_size: int,
    segment_rows: int,
    lines: tl.tensor,
    token_ids: tl.tensor,
    positions: tl.tensor,
    write_slots: tl.tensor,
    prefix_lengths: tl.tensor,
    parents: tl.tensor,
    root_rows: tl.tensor,
    logit_rows: tl.tensor,
    deciding: tl.tensor,
    decode_rows: tl.tensor,
    segments: tl.tensor,
    WIDTH: tl.constexpr,
    RESULT: tl.constexpr,
) -> None:
    """One program: one request.

    No early launch of the dependent kernel (PDL): attention reads these buffers without a grid dependency wait.
    """
    wait_for_previous()
    choice = choices + tl.program_id(0) * 8
    rows = tl.load(choice + 4)
    if rows > 0:
        item = tl.load(choice)
        outcome = result + tl.load(choice + 1) * RESULT
        root = tl.load(choice + 3)
        first_node = tl.load(choice + 5)
        size = tl.load(choice + 6)
        segment = tl.load(choice + 7)
        position = tl.load(choice + 2) + tl.load(outcome)

        line = tl.load(lines + root).to(tl.int64)
        page = tl.load(page_table + line * pages + position // page_size)
        tl.store(positions + root, position)
        tl.store(write_slots + root, page * page_size + position % page_size)
        tl.store(prefix_lengths + root, position + 1)

        place = tl.arange(0, WIDTH)
        laid = place < rows - 1
        live = place < size
        row = root + 1 + place
        drafted = nodes + (first_node + place) * 4
        tl.store(token_ids + row, tl.load(drafted, mask=live, other=0), mask=laid)
        tl.store(parents + row, tl.load(drafted + 1, mask=live, other=-2), mask=laid)
        depth = tl.load(drafted + 2, mask=live, other=0)
        tl.store(positions + row, tl.where(live, position + depth, 0), mask=laid)
        tl.store(prefix_lengths + row, tl.where(live, position + 1, 0), mask=laid)
        tl.store(root_rows + row, tl.where(live, root, row), mask=laid)
        tl.store(write_slots + row, tl.full((WIDTH,), -1, tl.int32), mask=laid & (place >= size))
        tl.store(decode_rows + row, tl.where(live, row, -1), mask=laid)
        first_logit = tl.load(deciding + item * 4)
        tl.store(logit_rows + first_logit + 1 + place, tl.where(live, row, -1), mask=laid)
        tl.store(deciding + item * 4 + 1, 1 + size)
        tl.store(deciding + item * 4 + 3, position + 1)

        before = place * segment_rows
        part = segments + (segment + place) * 4
        left = tl.minimum(tl.maximum(1 + size - before, 0), segment_rows)
        tl.store(part + 1, left, mask=before < rows)
        tl.store(part + 3, tl.zeros((WIDTH,), tl.int32) + position + 1, mask=before < rows)


def select_outcomes(
    choices: torch.Tensor,
    nodes: torch.Tensor,
    result: torch.Tensor,
    page_table: torch.Tensor,
    page_size: int,
    segment_rows: int,
    lines: torch.Tensor,
    token_ids: torch.Tensor,
    positions: torch.Tensor,
    write_slots: torch.Tensor,
    prefix_lengths: torch.Tensor,
    parents: torch.Tensor,
    root_rows: torch.Tensor,
    logit_rows: torch.Tensor,
    deciding: torch.Tensor,
    decode_rows: torch.Tensor,
    segments: torch.Tensor,
) -> None:
    """Settle the rows of a pass whose requests stand where the pass before, by its `result` of `tree_walk`, left them.

    Inputs, int32: choices [n, 8]: index in `deciding`, row of `result`, position of the root if nothing was accepted,
    row of the root, rows laid out for root and nodes (0 for padding), first of its nodes, number of nodes, fewer than
    rows, first segment. nodes [k, 4]: token, parent, depth from 1 on, unused. page_table [lines, pages]; lines [rows].
    In place, int32, the arrays of the pass as `PlanArrays` has them, laid out with all rows as if all were nodes: those
    beyond the tree become padding, which for `logit_rows` and `decode_rows` is -1. A segment has `segment_rows`
    rows at most. The slots of nodes stay, and `item_offsets` is left to `count_splits`.
    """
    launch(
        _select_outcomes,
        (len(choices),),
        choices,
        nodes,
        result,
        page_table,
        page_table.shape[1],
        page_size,
        segment_rows,
        lines,
        token_ids,
        positions,
        write_slots,
        prefix_lengths,
        parents,
        root_rows,
        logit_rows,
        deciding,
        decode_rows,
        segments,
        warps=2,
        WIDTH=MAX_ROWS,
        RESULT=RESULT_WIDTH,
    )


def select_outcomes_reference(
    choices: torch.Tensor,
    nodes: torch.Tensor,
    result: torch.Tensor,
    page_table: torch.Tensor,
    page_size: int,
    segment_rows: int,
    lines: torch.Tensor,
    token_ids: torch.Tensor,
    positions: torch.Tensor,
    write_slots: torch.Tensor,
    prefix_lengths: torch.Tensor,
    parents: torch.Tensor,
    root_rows: torch.Tensor,
    logit_rows: torch.Tensor,
    deciding: torch.Tensor,
    decode_rows: torch.Tensor,
    segments: torch.Tensor,
) -> None:
    """The same in torch."""
    for item, at, start, root, rows, first_node, size, segment in choices.tolist():
        if not rows:
            continue
        position = start + int(result[at, 0])
        drafted = nodes[first_node : first_node + size]
        page = int(page_table[int(lines[root]), position // page_size])
        positions[root], write_slots[root] = position, page * page_size + position % page_size
        prefix_lengths[root] = position + 1

        live, rest = slice(root + 1, root + 1 + size), slice(root + 1 + size, root + rows)
        token_ids[live], parents[live], positions[live] = drafted[:, 0], drafted[:, 1], position + drafted[:, 2]
        prefix_lengths[live], root_rows[live] = position + 1, root
        token_ids[rest], parents[rest], positions[rest], prefix_lengths[rest], write_slots[rest] = 0, -2, 0, 0, -1
        every = torch.arange(len(root_rows), dtype=root_rows.dtype, device=root_rows.device)
        root_rows[rest] = every[rest]
        decode_rows[live], decode_rows[rest] = every[live], -1
        logit = int(deciding[item, 0])
        logit_rows[logit + 1 : logit + 1 + size] = every[live]
        logit_rows[logit + 1 + size : logit + rows] = -1
        deciding[item, 1], deciding[item, 3] = 1 + size, position + 1
        for index, before in enumerate(range(0, rows, segment_rows), segment):
            segments[index, 1] = min(max(1 + size - before, 0), segment_rows)
            segments[index, 3] = position + 1


@triton.jit(do_not_specialize=["count"])
def _count_splits(segments: tl.tensor, item_offsets: tl.tensor, count: int, BLOCK: tl.constexpr) -> None:
    """Releases as little as `_select_outcomes`, and for the same reason."""
    wait_for_previous()
    total = tl.zeros((), tl.int32)
    for start in range(0, count, BLOCK):
        index = start + tl.arange(0, BLOCK)
        inside = index < count
        rows = tl.load(segments + index * 4 + 1, mask=inside, other=0)
        full = start_of_own_block(tl.load(segments + index * 4 + 3, mask=inside, other=0))
        whole = splits_below(full)
        splits = tl.where(rows > 0, whole + (full > start_of_split(whole)).to(tl.int32), 0)
        tl.store(item_offsets + 1 + index, total + tl.cumsum(splits, 0), mask=inside)
        total += tl.sum(splits)


def count_splits(segments: torch.Tensor, item_offsets: torch.Tensor) -> None:
    """Fill `item_offsets` of `prefix_attention`, int32 [S + 1], whose first is 0, from its segments, int32 [S, 4]."""
    block = min(_SEGMENTS, triton.next_power_of_2(len(segments)))
    launch(_count_splits, (1,), segments, item_offsets, len(segments), BLOCK=block)


def count_splits_reference(segments: torch.Tensor, item_offsets: torch.Tensor) -> None:
    """The same in torch."""
    splits = [num_splits(own_block(prefix)) if rows else 0 for _, rows, _, prefix in segments.tolist()]
    item_offsets[1:] = torch.tensor(splits, dtype=item_offsets.dtype).cumsum(0)
