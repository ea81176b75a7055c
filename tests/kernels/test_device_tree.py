from __future__ import annotations

import pytest
import torch

from slipstream_kernels.device_tree import DeviceTree, known, most_rows
from slipstream_kernels.token_tree import InvalidTreeError, TokenTree

TREE = TokenTree((5, 6, 7), (-1, 0, -1), (-0.1, -0.4, -2.0))


class Trees:
    def __init__(self) -> None:
        self.reads: list[int] = []

    def queue(self) -> torch.Tensor:
        return torch.zeros(1, 1)

    def read(self, row: int) -> TokenTree:
        self.reads.append(row)
        return TREE


def test_nothing_waits_for_the_nodes_that_does_not_look_at_them():
    trees = Trees()
    tree = DeviceTree(trees, 2, 9, 4)
    assert tree and most_rows(tree) == (9, 4) and {tree: 1}[tree] == 1 and tree == tree and tree != TREE
    assert trees.reads == []
    assert (tree.token_ids, tree.parents, tree.log_probs, tree.sources) == (
        TREE.token_ids,
        TREE.parents,
        TREE.log_probs,
        None,
    )
    assert (len(tree), tree.depth, tree.depths, tree.path(1), tree.children(-1)) == (3, 2, (1, 2, 1), (0, 1), (0, 2))
    assert known(tree) is TREE and tree.part([0]) == TREE.part([0])
    with pytest.raises(InvalidTreeError):
        tree.validate(vocab_size=7, max_nodes=9, max_depth=9)
    assert trees.reads == [2]


def test_trees_of_the_host_are_as_large_as_they_are():
    assert (most_rows(None), most_rows(TREE)) == ((0, 0), (3, 2))
    assert (known(None), known(TREE)) == (None, TREE)
