"""The path of drafted tokens to every tree node, from parents."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.token_tree import MAX_ROWS


@triton.jit
def _tree_paths(
    parents: tl.tensor, root_rows: tl.tensor, paths: tl.tensor, depths: tl.tensor, WIDTH: tl.constexpr
) -> None:
    """One row a program. Parents come before children, so a path in order is its nodes in ascending order."""
    release_next()
    wait_for_previous()
    row = tl.program_id(0)
    parent = tl.load(parents + row)
    node_zero = tl.load(root_rows + row) + 1
    nodes = tl.arange(0, WIDTH)
    node = tl.where(parent == -2, -1, row - node_zero)
    on_path = tl.zeros((WIDTH,), tl.int32)
    while node >= 0:
        on_path = tl.where(nodes == node, 1, on_path)
        node = tl.minimum(tl.load(parents + node_zero + node), node - 1)
    rank = tl.cumsum(on_path, 0)
    tl.store(paths + row * WIDTH + rank - 1, node_zero + nodes, mask=on_path == 1)
    tl.store(depths + row, tl.sum(on_path))


def tree_paths(parents: torch.Tensor, root_rows: torch.Tensor, paths: torch.Tensor, depths: torch.Tensor) -> None:
    """List every row's drafted ancestors, itself included.

    Inputs, int32 [rows]: parents, which is -2 for a row that is no tree node, else the parent's index among its tree's
    nodes, -1 for a child of the root; root_rows, the row of the tree's root, whose node j is row root + 1 + j.
    Outputs, int32: depths [rows], 0 for a row that is no tree node; paths [rows, 64], whose first depths[row] entries
    are row indices from the root's child down to the row itself, the others being left as they are.
    """
    launch(_tree_paths, (len(parents),), parents, root_rows, paths, depths, warps=1, WIDTH=MAX_ROWS)


def tree_paths_reference(
    parents: torch.Tensor, root_rows: torch.Tensor, paths: torch.Tensor, depths: torch.Tensor
) -> None:
    """The same in torch."""
    of_row: list[list[int]] = []
    for row, (parent, root) in enumerate(zip(parents.tolist(), root_rows.tolist(), strict=True)):
        of_row.append([] if parent == -2 else [*([] if parent == -1 else of_row[root + 1 + parent]), row])
    for row, path in enumerate(of_row):
        if path:
            paths[row, : len(path)] = torch.tensor(path, dtype=paths.dtype)
    depths.copy_(torch.tensor([len(path) for path in of_row], dtype=depths.dtype))
