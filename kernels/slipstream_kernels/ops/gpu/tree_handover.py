"""Trees of a pass that the device drafts behind the pass before: each choice gets its own."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.draft_trees import COUNT, PARENTS, TREE_WIDTH
from slipstream_kernels.ops.gpu.launch import launch, wait_for_previous
from slipstream_kernels.ops.gpu.tree_walk import RESULT_WIDTH
from slipstream_kernels.token_tree import MAX_ROWS


def tree_source(row: int, *, unresolved: bool) -> int:
    """What stands for the tree in `row` in the place of a number of nodes; `unresolved`: the root's position is that
    for no node accepted already.
    """
    return -1 - 2 * row - unresolved


@triton.jit
def _hand_trees(
    trees: tl.tensor,
    choices: tl.tensor,
    nodes: tl.tensor,
    result: tl.tensor,
    WIDTH: tl.constexpr,
    RESULT: tl.constexpr,
    TREE: tl.constexpr,
    COUNT: tl.constexpr,
    PARENTS: tl.constexpr,
) -> None:
    """One request a program."""
    wait_for_previous()
    choice = choices + tl.program_id(0) * 8
    rows = tl.load(choice + 4)
    if rows > 0:
        place = tl.load(choice + 6)
        tl.debug_barrier()  # all threads have read what one of them writes below
        if place < 0:
            tree = trees + ((-1 - place) // 2).to(tl.int64) * TREE
            if place % 2 != 0:
                tl.store(choice + 2, tl.load(choice + 2) - tl.load(result + tl.load(choice + 1) * RESULT))
            size = tl.minimum(tl.load(tree + COUNT), rows - 1)
            tl.store(choice + 6, size)

            index = tl.arange(0, WIDTH)
            live = index < size
            parent = tl.load(tree + PARENTS + index, mask=live, other=-1)
            node = nodes + (tl.load(choice + 5) + index) * 4
            tl.store(node, tl.load(tree + index, mask=live, other=0), mask=live)
            tl.store(node + 1, parent, mask=live)
            depth = tl.full((WIDTH,), 1, tl.int32)
            while tl.max(parent) >= 0:
                depth += (parent >= 0).to(tl.int32)
                parent = tl.load(tree + PARENTS + parent, mask=parent >= 0, other=-1)
            tl.store(node + 2, depth, mask=live)


def hand_trees(trees: torch.Tensor, choices: torch.Tensor, nodes: torch.Tensor, result: torch.Tensor) -> None:
    """In front of `select_outcomes`: fill in the trees.

    Inputs, int32: trees [any, TREE_WIDTH], as `DraftTrees.result`; result [any, 130] of the pass before. In place,
    int32, as in `select_outcomes`: each of `choices` with a negative number of nodes, a `tree_source`, gets as many of
    the tree's first nodes as there are rows; `nodes` has room for those. Where the end of the pass before was known to
    who planned this one the root's position is given as that leads to, and becomes that for no node accepted.
    """
    launch(
        _hand_trees,
        (len(choices),),
        trees,
        choices,
        nodes,
        result,
        warps=1,
        WIDTH=MAX_ROWS,
        RESULT=RESULT_WIDTH,
        TREE=TREE_WIDTH,
        COUNT=COUNT,
        PARENTS=PARENTS,
    )


def hand_trees_reference(trees: torch.Tensor, choices: torch.Tensor, nodes: torch.Tensor, result: torch.Tensor) -> None:
    """The same in torch."""
    for choice in choices:
        rows, place = int(choice[4]), int(choice[6])
        if not rows or place >= 0:
            continue
        tree = trees[(-1 - place) // 2].tolist()
        size = min(tree[COUNT], rows - 1)
        choice[2] -= result[int(choice[1]), 0] if place % 2 else 0
        choice[6] = size
        depths: list[int] = []
        for index, parent in enumerate(tree[PARENTS : PARENTS + size]):
            depths.append(1 if parent < 0 else depths[parent] + 1)
            nodes[int(choice[5]) + index, :3] = torch.tensor([tree[index], parent, depths[-1]])
