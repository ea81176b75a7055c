"""Truncates the text rows of a draft round to the accepted path of the target pass queued in front of it.

The host reserves rows for the longest path. On the device accepted rows get their tokens, the others become padding:

    rows of a session   |-- min(accepted + 1, R) live --|-- padding --|
                        first                                         first + R

`follows`, int32 [sessions, 8]: row of `results` of `tree_walk`, first row, reserved rows R (0: padding), offset of the
first state, first segment, and three unused words.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, wait_for_previous
from slipstream_kernels.ops.gpu.tree_walk import RESULT_WIDTH
from slipstream_kernels.token_tree import MAX_ROWS

FOLLOW = 8
"""Columns of `follows`."""
_NODES = 128
"""Positions of nodes taken at a time."""


@triton.jit(do_not_specialize=["levels", "nodes"], do_not_specialize_on_alignment=["results"])
def _settle_text(
    follows: tl.tensor,
    results: tl.tensor,
    token_ids: tl.tensor,
    write_slots: tl.tensor,
    prefix_lengths: tl.tensor,
    parents: tl.tensor,
    root_rows: tl.tensor,
    decode_rows: tl.tensor,
    segments: tl.tensor,
    last_rows: tl.tensor,
    root_positions: tl.tensor,
    node_positions: tl.tensor,
    node_choices: tl.tensor,
    node_prefix_lengths: tl.tensor,
    node_segments: tl.tensor,
    levels: int,
    nodes: int,
    SEGMENT_ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
    NODES: tl.constexpr,
    ROWS: tl.constexpr,
    RESULT: tl.constexpr,
    FOLLOW: tl.constexpr,
) -> None:
    """One program: one session.

    No early launch of the dependent kernel (PDL): attention reads these buffers without a grid dependency wait.
    """
    wait_for_previous()
    session = tl.program_id(0)
    follow = follows + session * FOLLOW
    rows = tl.load(follow + 2)
    if rows > 0:
        outcome = results + tl.load(follow).to(tl.int64) * RESULT
        first = tl.load(follow + 1)
        segment = tl.load(follow + 4)
        left = tl.minimum(tl.maximum(tl.load(outcome), 0) + 1, rows)
        fewer = left - rows

        place = tl.arange(0, ROWS)
        row = first + place
        live = place < left
        idle = (place >= left) & (place < rows)
        token = tl.load(outcome + 2 + ROWS + place, mask=live, other=0)
        tl.store(token_ids + row, token, mask=place < rows)
        tl.store(write_slots + row, tl.full((ROWS,), -1, tl.int32), mask=idle)
        tl.store(prefix_lengths + row, tl.zeros((ROWS,), tl.int32), mask=idle)
        tl.store(parents + row, tl.full((ROWS,), -2, tl.int32), mask=idle)
        tl.store(root_rows + row, row, mask=idle)
        tl.store(decode_rows + row, tl.full((ROWS,), -1, tl.int32), mask=idle)
        before = place * SEGMENT_ROWS
        held = tl.minimum(tl.maximum(left - before, 0), SEGMENT_ROWS)
        tl.store(segments + (segment + place) * 4 + 1, held, mask=before < rows)
        tl.store(last_rows + session, first + left - 1)
        tl.store(root_positions + session, tl.load(root_positions + session) + fewer)

        for start in range(0, levels * WIDTH, NODES):
            index = start + tl.arange(0, NODES)
            inside = index < levels * WIDTH
            node = (index // WIDTH) * nodes + session * WIDTH + index % WIDTH
            tl.store(node_positions + node, tl.load(node_positions + node, mask=inside) + fewer, mask=inside)
            tl.store(node_choices + node, tl.load(node_choices + node, mask=inside) + fewer, mask=inside)
        if levels > 0:
            listed = tl.arange(0, PADDED_WIDTH)
            prefix = node_prefix_lengths + session * WIDTH + listed
            tl.store(prefix, tl.load(prefix, mask=listed < WIDTH) + fewer, mask=listed < WIDTH)
            parts: tl.constexpr = (WIDTH + SEGMENT_ROWS - 1) // SEGMENT_ROWS
            shared = node_segments + (session * parts + listed) * 4 + 3
            tl.store(shared, tl.load(shared, mask=listed < parts) + fewer, mask=listed < parts)


def settle_text(
    follows: torch.Tensor,
    results: torch.Tensor,
    segment_rows: int,
    width: int,
    token_ids: torch.Tensor,
    write_slots: torch.Tensor,
    prefix_lengths: torch.Tensor,
    parents: torch.Tensor,
    root_rows: torch.Tensor,
    decode_rows: torch.Tensor,
    segments: torch.Tensor,
    last_rows: torch.Tensor,
    root_positions: torch.Tensor,
    node_positions: torch.Tensor,
    node_choices: torch.Tensor,
    node_prefix_lengths: torch.Tensor,
    node_segments: torch.Tensor,
) -> None:
    """Write the decided tokens to the live rows, turn the others into padding, and move the trees below them up.

    int32: follows; results [n, 130] of `tree_walk`, with what each session's row says. In place, int32, the arrays of a
    round as `RoundArrays` has them: a session's `width` nodes of each level lie side by side, and its segments, of
    `segment_rows` rows at most, too. Rows that become padding have token 0, slot -1, prefix 0, parent -2, are their own
    roots and are not among `decode_rows`, which lists each row at its own place; they keep position and line. Segments
    may end up without rows; `item_offsets` is left to `count_splits`. Without deeper levels nothing is done to nodes.
    """
    assert results.shape[1] == RESULT_WIDTH
    assert results.is_contiguous()
    launch(
        _settle_text,
        (len(follows),),
        follows,
        results,
        token_ids,
        write_slots,
        prefix_lengths,
        parents,
        root_rows,
        decode_rows,
        segments,
        last_rows,
        root_positions,
        node_positions,
        node_choices,
        node_prefix_lengths,
        node_segments,
        len(node_positions),
        len(node_prefix_lengths),
        warps=2,
        SEGMENT_ROWS=segment_rows,
        WIDTH=width,
        PADDED_WIDTH=triton.next_power_of_2(width),
        NODES=_NODES,
        ROWS=MAX_ROWS,
        RESULT=RESULT_WIDTH,
        FOLLOW=FOLLOW,
    )


def settle_text_reference(
    follows: torch.Tensor,
    results: torch.Tensor,
    segment_rows: int,
    width: int,
    token_ids: torch.Tensor,
    write_slots: torch.Tensor,
    prefix_lengths: torch.Tensor,
    parents: torch.Tensor,
    root_rows: torch.Tensor,
    decode_rows: torch.Tensor,
    segments: torch.Tensor,
    last_rows: torch.Tensor,
    root_positions: torch.Tensor,
    node_positions: torch.Tensor,
    node_choices: torch.Tensor,
    node_prefix_lengths: torch.Tensor,
    node_segments: torch.Tensor,
) -> None:
    """The same in torch."""
    every = torch.arange(len(root_rows), dtype=root_rows.dtype, device=root_rows.device)
    for session, (at, first, rows, _, segment, *_) in enumerate(follows.tolist()):
        if not rows:
            continue
        left = rows_left(results, at, rows)
        live, idle = slice(first, first + left), slice(first + left, first + rows)
        token_ids[live], token_ids[idle] = results[at, 2 + MAX_ROWS : 2 + MAX_ROWS + left], 0
        write_slots[idle], prefix_lengths[idle], parents[idle], decode_rows[idle] = -1, 0, -2, -1
        root_rows[idle] = every[idle]
        for part, before in enumerate(range(0, rows, segment_rows), segment):
            segments[part, 1] = min(max(left - before, 0), segment_rows)
        last_rows[session] = first + left - 1
        root_positions[session] += left - rows
        if len(node_positions):
            own = slice(session * width, (session + 1) * width)
            for moved in (node_positions[:, own], node_choices[:, own], node_prefix_lengths[own]):
                moved += left - rows
            parts = triton.cdiv(width, segment_rows)
            node_segments[session * parts : (session + 1) * parts, 3] += left - rows


def rows_left(results: torch.Tensor, at: int, rows: int) -> int:
    """Return how many of `rows` reserved rows stay live, by row `at` of the results."""
    return min(max(int(results[at, 0]), 0) + 1, rows)
