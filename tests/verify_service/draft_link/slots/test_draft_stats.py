"""Trees count as steps verified them; the path that the committed tokens take is that of the verifier."""

from __future__ import annotations

import random

import pytest

from slipstream.generation_types import SourceCount
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.acceptance import accept, accepted_by_source, match_path
from verify_service.draft_link.slots.draft_stats import DraftStats, LateTreeMatch

TREE = TokenTree((30, 31, 9, 50, 30), (-1, 0, -1, 2, -1))


@pytest.mark.parametrize(
    ("tokens", "end"),
    [
        ((), (-1, 0)),
        ((30,), (0, 1)),
        ((31,), (-1, 0)),
        ((30, 31), (1, 2)),
        ((9, 50), (3, 2)),
        ((30, 50), (0, 1)),
        ((9, 50, 7), (3, 2)),
        ((7, 30), (-1, 0)),
    ],
)
def test_the_matched_path(tokens: tuple[int, ...], end: tuple[int, int]) -> None:
    assert match_path(TREE, tokens) == end


def test_it_agrees_with_the_verifiers_walk() -> None:
    draw = random.Random(4)
    for _ in range(500):
        size = draw.randrange(1, 12)
        tree = TokenTree(
            tuple(draw.randrange(3) for _ in range(size)), tuple(draw.randrange(-1, node) for node in range(size))
        )
        took = accept(tree, [draw.randrange(3) for _ in range(size + 1)])
        assert match_path(tree, took.tokens[:-1]) == (took.nodes[-1] if took.nodes else -1, len(took.nodes))
        stats = DraftStats()
        stats.count([(tree, took.nodes)])
        assert (stats.drafted, stats.accepted) == (size, len(took.nodes))


def test_nodes_of_several_proposers_are_shared_out() -> None:
    tree = TokenTree((5, 6, 7, 8), (-1, 0, 1, 0), None, ("a", "b", "a", "a"))
    assert accepted_by_source(tree, (0, 1)) == (SourceCount("a", 3, 1), SourceCount("b", 1, 1))
    assert accepted_by_source(TokenTree.chain((5, 6)), (0,)) == ()
    stats = DraftStats()
    for nodes in ((0, 1), (0, 1, 2), ()):
        stats.count([(tree, nodes)])
    stats.count([])
    stats.count([(TokenTree.chain((5,)), (0,))])
    assert stats.sources == {"a": SourceCount("a", 9, 3), "b": SourceCount("b", 3, 2)}
    assert (stats.drafted, stats.accepted) == (13, 6)


LATE_TREE = TokenTree((5, 6, 7, 8), (-1, -1, 1, 2))
"""5, or 6 and then 7 and 8."""


@pytest.mark.parametrize(
    ("steps", "right"),
    [
        ([(9,)], 0),
        ([(5,)], 1),
        ([(6,), (9,)], 1),
        ([(6, 7, 9)], 2),
        ([(6, 7), (8,)], 3),
        ([(6,), (7, 8, 9)], 3),
    ],
)
def test_the_text_is_followed_down_the_tree_until_it_leaves_it(steps: list[tuple[int, ...]], right: int) -> None:
    match = LateTreeMatch(LATE_TREE)
    *before, last = steps
    assert not any(match.advance(tokens) for tokens in before)
    assert match.advance(last)
    assert match.matched_depth == right
