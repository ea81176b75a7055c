from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_kernels.ops.gpu.draft_trees import COUNT, PARENTS, TREE_WIDTH
from slipstream_kernels.ops.gpu.tree_handover import hand_trees, hand_trees_reference, tree_source
from slipstream_kernels.ops.gpu.tree_walk import RESULT_WIDTH
from slipstream_kernels.token_tree import MAX_ROWS, TokenTree

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GARBAGE = 77


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    size = draw(st.sampled_from([0, 1, 5, MAX_ROWS - 1]))
    parents = tuple(draw(st.integers(max(-1, node - 4), node - 1)) for node in range(size))
    return TokenTree(tuple(range(20, 20 + size)), parents)


def words_of(tree: TokenTree) -> list[int]:
    words = [GARBAGE] * TREE_WIDTH
    words[: len(tree)], words[COUNT], words[PARENTS : PARENTS + len(tree)] = tree.token_ids, len(tree), tree.parents
    return words


def outcome_of(accepted: int) -> list[int]:
    """Nodes 2, 4, .. are accepted, and the tokens 100, 101, .. decided."""
    words = [GARBAGE] * RESULT_WIDTH
    words[0], words[2 : 2 + accepted] = accepted, range(2, 2 + 2 * accepted, 2)
    words[2 + MAX_ROWS : 3 + MAX_ROWS + accepted] = range(100, 101 + accepted)
    return words


def tensor(values: object) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(np.asarray(values, np.int32))).to(DEVICE)


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(trees(), st.integers(0, 5), st.sampled_from([2, 6, MAX_ROWS]), st.booleans()), min_size=1, max_size=4
    )
)
@pytest.mark.parametrize("op", [hand_trees, hand_trees_reference])
def test_a_choice_gets_the_tree_that_was_drafted_for_it(op, batch):
    count = len(batch)
    drafted = tensor([words_of(tree) for tree, *_ in batch][::-1])
    result = tensor([outcome_of(accepted) for _, accepted, *_ in batch])
    choices = [
        [item, item, 50 + item, 0, rows, 2 + item * MAX_ROWS, tree_source(count - 1 - item, unresolved=unresolved), 0]
        for item, (_, _, rows, unresolved) in enumerate(batch)
    ]
    alone = [count, 0, 9, 0, 1, 0, 0, 0]  # a root without a tree
    choices = tensor([*choices, alone, [0] * 8])
    nodes = tensor(np.full((2 + count * MAX_ROWS, 4), GARBAGE))
    op(drafted, choices, nodes, result)
    assert choices[count:].tolist() == [alone, [0] * 8]
    left = torch.ones(len(nodes), dtype=torch.bool)
    for item, (tree, accepted, rows, unresolved) in enumerate(batch):
        size, first = min(len(tree), rows - 1), 2 + item * MAX_ROWS
        position = 50 + item - (0 if unresolved else accepted)
        assert choices[item].tolist() == [item, item, position, 0, rows, first, size, 0]
        listed = zip(tree.token_ids[:size], tree.parents[:size], tree.depths[:size], strict=True)
        assert nodes[first : first + size, :3].tolist() == [list(each) for each in listed]
        left[first : first + size] = False
    assert bool((nodes[left] == GARBAGE).all())
