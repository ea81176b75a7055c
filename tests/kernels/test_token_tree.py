from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_kernels.token_tree import InvalidTreeError, TokenTree

VOCAB = 7


@st.composite
def trees(draw: st.DrawFn, max_nodes: int = 20) -> TokenTree:
    size = draw(st.integers(0, max_nodes))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
    tokens = tuple(draw(st.integers(0, VOCAB - 1)) for _ in range(size))
    log_probs = tuple(-float(node) for node in range(size)) if draw(st.booleans()) else None
    sources = tuple("ab"[node % 2] for node in range(size)) if draw(st.booleans()) else None
    return TokenTree(tokens, parents, log_probs, sources)


@given(trees())
def test_derived_facts_agree(tree: TokenTree) -> None:
    tree.validate(vocab_size=VOCAB, max_nodes=20, max_depth=20)
    for node in range(len(tree)):
        path = tree.path(node)
        assert len(path) == tree.depths[node] and path[-1] == node
        assert [tree.parents[i] for i in path] == [-1, *path[:-1]]
        assert node in tree.children(tree.parents[node])
    assert tree.depth == max(tree.depths, default=0)
    assert sorted(i for parent in range(-1, len(tree)) for i in tree.children(parent)) == list(range(len(tree)))


@given(trees(), st.integers(0, 20), st.integers(0, 20))
def test_truncated_is_a_subtree_within_limits(tree: TokenTree, max_nodes: int, max_depth: int) -> None:
    small = tree.truncated(max_nodes, max_depth)
    small.validate(vocab_size=VOCAB, max_nodes=max_nodes, max_depth=max_depth)
    paths = {tuple(tree.token_ids[i] for i in tree.path(node)) for node in range(len(tree))}
    assert all(tuple(small.token_ids[i] for i in small.path(node)) in paths for node in range(len(small)))
    assert (small.log_probs is None) == (tree.log_probs is None)
    assert (small.sources is None) == (tree.sources is None)
    if small.log_probs and small.sources:
        assert small.sources == tuple("ab"[-int(log_prob) % 2] for log_prob in small.log_probs)
    if max_nodes >= len(tree) and max_depth >= tree.depth:
        assert small == tree


@given(trees(), st.data())
def test_walk_follows_sampled_tokens(tree: TokenTree, data: st.DataObject) -> None:
    root_token = data.draw(st.integers(0, VOCAB - 1))
    node_tokens = [data.draw(st.integers(0, VOCAB - 1)) for _ in range(len(tree))]
    accepted, committed = tree.walk(root_token, node_tokens)
    assert len(committed) == len(accepted) + 1 and committed[0] == root_token
    node = -1
    for step, (child, token) in enumerate(zip(accepted, committed, strict=False)):
        assert tree.parents[child] == node and tree.token_ids[child] == token
        assert committed[step + 1] == node_tokens[child]
        node = child
    assert all(tree.token_ids[child] != committed[-1] for child in tree.children(node))


def test_chain_walk_accepts_the_matching_prefix() -> None:
    tree = TokenTree.chain([1, 2, 3])
    assert tree.walk(1, [2, 5, 6]) == ((0, 1), (1, 2, 5))
    assert tree.walk(4, [2, 3, 0]) == ((), (4,))


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (TokenTree((1, 2), (-1,)), "2 token_ids but 1 parents"),
        (TokenTree((1,), (-1,), (0.0, 0.0)), "1 token_ids but 2 log_probs"),
        (TokenTree((1,) * 4, (-1,) * 4), "4 nodes, limit 3"),
        (TokenTree((1,), (0,)), r"parents\[0\] is 0, must be from -1 to -1"),
        (TokenTree((1, 1), (-1, -2)), r"parents\[1\] is -2"),
        (TokenTree((VOCAB,), (-1,)), r"token_ids\[0\] is 7, vocabulary has 7"),
        (TokenTree((-1,), (-1,)), r"token_ids\[0\] is -1"),
        (TokenTree.chain([0, 0, 0]), "depth 3, limit 2"),
    ],
)
def test_malformed_trees_are_named(tree: TokenTree, message: str) -> None:
    with pytest.raises(InvalidTreeError, match=message):
        tree.validate(vocab_size=VOCAB, max_nodes=3, max_depth=2)
