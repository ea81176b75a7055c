"""The walk follows sampled tokens, and cutting a tree keeps a tree."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slipstream_kernels.token_tree import TokenTree
from verify_service.core.acceptance import accept, truncated


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    size = draw(st.integers(1, 20))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
    return TokenTree(tuple(draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))), parents)


@given(tree=trees(), data=st.data())
def test_walk_equals_the_definition(tree: TokenTree, data: st.DataObject) -> None:
    sampled = data.draw(st.lists(st.integers(0, 2), min_size=len(tree) + 1, max_size=len(tree) + 1))
    decided = accept(tree, sampled)
    assert (decided.nodes, decided.tokens) == tree.walk(sampled[0], sampled[1:])


def test_walk_takes_a_whole_chain_and_its_bonus() -> None:
    decided = accept(TokenTree.chain([5, 6, 7]), [5, 6, 7, 8])
    assert decided.nodes == (0, 1, 2)
    assert decided.tokens == (5, 6, 7, 8)


def test_walk_of_a_wrong_tree_is_a_plain_step() -> None:
    assert accept(TokenTree.chain([5, 6, 7]), [6, 6, 7, 8]).tokens == (6,)


@given(tree=trees(), max_nodes=st.integers(1, 24), max_depth=st.integers(0, 24))
def test_cut_stays_within_both_limits(tree: TokenTree, max_nodes: int, max_depth: int) -> None:
    left = truncated(tree, max_nodes=max_nodes, max_depth=max_depth)
    if left is None:
        assert max_nodes == 1 or max_depth == 0
        return
    left.validate(vocab_size=3, max_nodes=max_nodes - 1, max_depth=max_depth)
    if len(tree) < max_nodes and tree.depth <= max_depth:
        assert left == tree
