from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_kernels.ops.gpu.tree_leaves import tree_leaves, tree_leaves_reference
from slipstream_kernels.token_tree import TokenTree

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@st.composite
def forests(draw: st.DrawFn) -> list[TokenTree]:
    """Trees, those of no nodes being rows of their own."""
    forest = []
    for _ in range(draw(st.integers(1, 3))):
        size = draw(st.integers(0, 9))
        parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
        forest.append(TokenTree((0,) * size, parents))
    return forest


def check(forest: list[TokenTree], segment_rows: int) -> None:
    parents, roots, expected = [], [], []
    for tree in forest:
        root = len(parents)
        parents += [-2, *tree.parents]
        roots += [root] * (1 + len(tree))
        paths = [{root}, *({root, *(root + 1 + node for node in tree.path(leaf))} for leaf in range(len(tree)))]
        for place in range(len(paths)):
            mates = range(place, min(len(paths), place // segment_rows * segment_rows + segment_rows))
            expected.append(max(root + mate for mate in mates if root + place in paths[mate]))
    for op in (tree_leaves, tree_leaves_reference):
        leaves = torch.full((len(parents),), -9, dtype=torch.int32, device=DEVICE)
        columns = (torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in (parents, roots))
        op(*columns, leaves, segment_rows=segment_rows)
        assert leaves.tolist() == expected


@given(forests(), st.sampled_from([1, 2, 3, 5, 64]))
@settings(max_examples=25)
def test_a_leaf_is_the_last_row_of_the_segment_below(forest: list[TokenTree], segment_rows: int) -> None:
    check(forest, segment_rows)


@pytest.mark.parametrize("segment_rows", [16, 128])
def test_largest_trees(segment_rows: int) -> None:
    check([TokenTree.chain([0] * 63), TokenTree((0,) * 63, (-1,) * 63)], segment_rows)
