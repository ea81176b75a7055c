"""The leaf by whose path attention computes a row, from parents: rows of one path are computed together."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.token_tree import MAX_ROWS


@triton.jit
def _tree_leaves(
    parents: tl.tensor,
    root_rows: tl.tensor,
    leaves: tl.tensor,
    num_rows: int,
    SEGMENT_ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """One row a program: all nodes of its segment climb towards the root together, and those that meet the row count.

    Parents come before children, so that the last of them has none.
    """
    release_next()
    wait_for_previous()
    row = tl.program_id(0)
    root = tl.load(root_rows + row)
    first = root + (row - root) // SEGMENT_ROWS * SEGMENT_ROWS
    place = tl.arange(0, WIDTH)
    member = first + place
    inside = (place < SEGMENT_ROWS) & (member < num_rows)
    inside &= tl.load(root_rows + member, mask=inside, other=-1) == root
    below = inside & ((member == row) | (row == root))
    ancestor = tl.where(inside & (member > root), member, -1)
    while tl.max(ancestor, 0) > row:
        climbing = ancestor > row
        parent = tl.load(parents + ancestor, mask=climbing, other=-1)
        parent = tl.minimum(tl.maximum(root + 1 + parent, root), ancestor - 1)
        ancestor = tl.where(climbing, parent, ancestor)
        below |= inside & (ancestor == row)
    tl.store(leaves + row, tl.max(tl.where(below, member, row), 0))


def tree_leaves(parents: torch.Tensor, root_rows: torch.Tensor, leaves: torch.Tensor, *, segment_rows: int) -> None:
    """leaves[row] = the last row of the row's segment that hangs below it, or the row itself.

    Inputs, int32 [rows], as of `tree_paths`; output int32 [rows]. Segments are parts of `segment_rows` rows of a tree
    from its root on. What is stored is a leaf within its segment; its path holds the row.
    """
    segment_rows = min(segment_rows, MAX_ROWS)
    launch(
        _tree_leaves,
        (len(parents),),
        parents,
        root_rows,
        leaves,
        len(parents),
        SEGMENT_ROWS=segment_rows,
        WIDTH=triton.next_power_of_2(segment_rows),
        warps=1,
    )


def tree_leaves_reference(
    parents: torch.Tensor, root_rows: torch.Tensor, leaves: torch.Tensor, *, segment_rows: int
) -> None:
    """The same in torch."""
    roots = root_rows.tolist()
    above = [root if parent == -1 else root + 1 + parent for parent, root in zip(parents.tolist(), roots, strict=True)]
    found = list(range(len(roots)))
    for row, root in enumerate(roots):
        ancestor = row
        while ancestor > root:
            ancestor = above[ancestor]
            if (ancestor - root) // segment_rows == (row - root) // segment_rows:
                found[ancestor] = row
    leaves.copy_(torch.tensor(found, dtype=leaves.dtype))
