"""Chances follow what was accepted, whatever the proposer claims."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_kernels.token_tree import TokenTree
from verify_service.speculation.acceptance_model import MAX_TABLES, AcceptanceModel, ProposedTree

GREEDY = ("ngram", False)


def pair(claims: tuple[float, float] | None, kind: tuple[str, bool] = GREEDY, streak: int = 0) -> ProposedTree:
    """Two children of the root."""
    logs = None if claims is None else tuple(math.log(claim) for claim in claims)
    return ProposedTree(kind, streak, TokenTree((5, 6), (-1, -1), logs))


def test_without_experience_the_proposer_is_believed() -> None:
    likely, unlikely = AcceptanceModel().path_probs([pair((0.95, 0.03))])
    assert likely > 0.85
    assert unlikely < 0.1


def test_siblings_without_probabilities_rank_by_their_order() -> None:
    tree = TokenTree((5, 6, 7, 8), (-1, -1, -1, 0))
    first, second, third, child = AcceptanceModel().path_probs([ProposedTree(GREEDY, 0, tree)])
    assert first > second > third
    assert child == pytest.approx(first * first)


def test_claims_that_prove_wrong_are_believed_no_more_and_modest_ones_that_prove_right_are() -> None:
    chances = AcceptanceModel()
    for _ in range(200):
        chances.observe([(pair((0.95, 0.03)), (1,))])
    boast, modest = chances.path_probs([pair((0.95, 0.03))])
    assert boast < 0.1
    assert modest > 0.9


def test_what_one_proposer_did_says_nothing_of_another_nor_greedy_of_sampled_requests() -> None:
    chances = AcceptanceModel()
    before = chances.path_probs([pair((0.95, 0.03), kind) for kind in (("suffix", False), ("ngram", True))])
    for _ in range(100):
        chances.observe([(pair((0.95, 0.03)), ())])
    after = chances.path_probs([pair((0.95, 0.03), kind) for kind in (("suffix", False), ("ngram", True))])
    assert np.array_equal(before, after)


def test_only_nodes_whose_parents_were_right_are_judged() -> None:
    chain = ProposedTree(
        GREEDY, 0, TokenTree((1, 2, 3), (-1, 0, 1), tuple(math.log(0.55) * depth for depth in (1, 2, 3)))
    )
    once, twice = AcceptanceModel(), AcceptanceModel()
    for _ in range(50):
        once.observe([(chain, ())])
        twice.observe([(chain, (0,))])
    # The second level failed beneath a first one that was right; beneath one that was wrong nothing is known of it.
    first, second, _ = twice.path_probs([chain])
    assert first > 0.8
    assert second < 0.3 * first
    first, second, _ = once.path_probs([chain])
    assert first < 0.2


def test_a_streak_of_right_tokens_tells() -> None:
    chances = AcceptanceModel()
    for _ in range(100):
        chances.observe([(pair((0.55, 0.45), streak=3), (0,))])
        chances.observe([(pair((0.55, 0.45), streak=0), ())])
    assert chances.path_probs([pair((0.55, 0.45), streak=3)])[0] > 0.8
    assert chances.path_probs([pair((0.55, 0.45), streak=0)])[0] < 0.3


def test_experience_of_few_proposers_is_kept() -> None:
    chances = AcceptanceModel()
    for number in range(3 * MAX_TABLES):
        chances.observe([(pair(None, (f"name{number}", False)), ())])
    assert len(chances._tables) == MAX_TABLES


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    size = draw(st.integers(1, 20))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
    logs = draw(st.none() | st.lists(st.floats(-30, 5), min_size=size, max_size=size).map(tuple))
    return TokenTree(tuple(range(size)), parents, logs)


@given(drafted=st.lists(trees(), min_size=1, max_size=4), seen=trees())
def test_a_child_is_never_likelier_than_its_parent_and_trees_do_not_mix(
    drafted: list[TokenTree], seen: TokenTree
) -> None:
    chances = AcceptanceModel()
    chances.observe([(ProposedTree(GREEDY, 1, seen), seen.path(len(seen) - 1))])
    several = [ProposedTree(GREEDY, index, tree) for index, tree in enumerate(drafted)]
    together = chances.path_probs(several)
    assert np.array_equal(together, np.concatenate([chances.path_probs([each]) for each in several]))
    first = 0
    for tree in drafted:
        own = together[first : first + len(tree)]
        first += len(tree)
        assert ((own > 0) & (own < 1)).all()
        assert all(parent < 0 or own[node] < own[parent] for node, parent in enumerate(tree.parents))
