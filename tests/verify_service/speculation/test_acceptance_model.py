"""Chances follow what was accepted, whatever the proposer claims."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_kernels.token_tree import TokenTree
from verify_service.core.acceptance_history import AcceptanceHistory
from verify_service.speculation.acceptance_model import MAX_TABLES, AcceptanceModel, ProposedTree

GREEDY = ("ngram", False)


def pair(claims: tuple[float, float] | None, kind: tuple[str, bool] = GREEDY, streak: int = 0) -> ProposedTree:
    """Two children of the root."""
    logs = None if claims is None else tuple(math.log(claim) for claim in claims)
    return ProposedTree(kind, TokenTree((5, 6), (-1, -1), logs), AcceptanceHistory(last_accept_length=streak))


def test_without_experience_the_proposer_is_believed() -> None:
    likely, unlikely = AcceptanceModel().path_probs([pair((0.95, 0.03))])
    assert likely > 0.85
    assert unlikely < 0.1


def test_siblings_without_probabilities_rank_by_their_order() -> None:
    tree = TokenTree((5, 6, 7, 8), (-1, -1, -1, 0))
    first, second, third, child = AcceptanceModel().path_probs([ProposedTree(GREEDY, tree)])
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
    chain = ProposedTree(GREEDY, TokenTree((1, 2, 3), (-1, 0, 1), tuple(math.log(0.55) * depth for depth in (1, 2, 3))))
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


def of_request(history: AcceptanceHistory, depth: int, proposer: str = "ngram") -> ProposedTree:
    return ProposedTree((proposer, False), TokenTree.chain(range(depth)), history)


def test_a_request_of_which_little_was_seen_has_the_rate_of_its_proposer() -> None:
    model, seen, new = AcceptanceModel(), AcceptanceHistory(), AcceptanceHistory()
    assert model.level_rates([(new, "ngram"), (new, "suffix")]) == pytest.approx([0.7, 0.7])
    for _ in range(200):
        model.observe([(of_request(seen, 4), ())])
    own, other, elsewhere = model.level_rates([(seen, "ngram"), (new, "ngram"), (new, "suffix")])
    assert own < other < 0.2
    assert elsewhere == pytest.approx(0.7)


def test_levels_below_the_first_wrong_one_were_not_reached() -> None:
    model, history = AcceptanceModel(), AcceptanceHistory()
    model.observe([(of_request(history, 6), (0, 1))])
    assert (history.tried, history.matched, history.last_accept_length) == (3, 2, 2)
    model = AcceptanceModel()
    model.observe([(of_request(whole := AcceptanceHistory(), 2), (0, 1))])
    assert (whole.tried, whole.matched) == (2, 2)


def test_a_tree_is_judged_by_what_became_of_the_one_before() -> None:
    """The nodes that a verified tree was right for count among those after the streak before it."""
    model, history, logs = AcceptanceModel(), AcceptanceHistory(), (math.log(0.55), math.log(0.45))
    for _ in range(200):  # right once and wrong once, in turns
        right = () if history.last_accept_length else (0,)
        model.observe([(ProposedTree(GREEDY, TokenTree((5, 6), (-1, -1), logs), history), right)])
    assert model.path_probs([pair((0.55, 0.45), streak=0)])[0] > 0.8
    assert model.path_probs([pair((0.55, 0.45), streak=1)])[0] < 0.3


def test_forced_text_tells_nothing_of_levels() -> None:
    model = AcceptanceModel()
    for _ in range(100):
        model.observe([(ProposedTree(GREEDY, TokenTree.chain((1, 2))), ())])
    assert model.level_rates([(AcceptanceHistory(), "ngram")]) == pytest.approx([0.7])


def test_a_tree_of_which_nothing_was_taken_counts_by_the_chance_of_its_first_level() -> None:
    model, (poor, good) = AcceptanceModel(), (AcceptanceHistory(), AcceptanceHistory())
    trees = [
        ProposedTree(
            GREEDY, TokenTree((1, 2, 3), (-1, 0, -1), (math.log(0.03), math.log(0.02), math.log(0.015))), poor
        ),
        ProposedTree(GREEDY, TokenTree((1, 2), (-1, -1), (math.log(0.95), math.log(0.03))), good),
    ]
    chances = model.path_probs(trees).tolist()
    model.expect(trees)
    assert (poor.tried, poor.matched) == (1, pytest.approx(chances[0] + chances[2]))
    assert (good.tried, good.matched) == (1, pytest.approx(min(1.0, chances[3] + chances[4])))
    for _ in range(200):
        model.expect(trees[:1])
    assert model.level_rates([(AcceptanceHistory(), "ngram")])[0] < 0.2


@pytest.mark.parametrize(("right", "learned"), [((), True), ((0,), False)])
def test_a_probe_that_finds_a_proposer_another_has_learned(right: tuple[int, ...], *, learned: bool) -> None:
    model = AcceptanceModel()
    assert not model.has_learned()
    for _ in range(200):
        model.observe([(of_request(AcceptanceHistory(), 1), (0,))])
    model.begin_probe()
    assert not model.has_learned()
    for _ in range(20):
        model.observe([(of_request(AcceptanceHistory(), 1), right), (of_request(AcceptanceHistory(), 1, "new"), ())])
    assert model.has_learned() == learned
    model.begin_probe()
    assert not model.has_learned()


def test_what_was_seen_before_a_probe_counts_for_half() -> None:
    faded, kept = AcceptanceModel(), AcceptanceModel()
    for model in (faded, kept):
        for _ in range(200):
            model.observe([(of_request(AcceptanceHistory(), 1), (0,))])
    faded.begin_probe()
    for model in (faded, kept):
        for _ in range(10):
            model.observe([(of_request(AcceptanceHistory(), 1), ())])
    after, before = (model.level_rates([(AcceptanceHistory(), "ngram")])[0] for model in (faded, kept))
    assert after < before - 0.05


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
    chances.observe([(ProposedTree(GREEDY, seen, AcceptanceHistory(last_accept_length=1)), seen.path(len(seen) - 1))])
    several = [
        ProposedTree(GREEDY, tree, AcceptanceHistory(last_accept_length=index)) for index, tree in enumerate(drafted)
    ]
    together = chances.path_probs(several)
    assert np.array_equal(together, np.concatenate([chances.path_probs([each]) for each in several]))
    first = 0
    for tree in drafted:
        own = together[first : first + len(tree)]
        first += len(tree)
        assert ((own > 0) & (own < 1)).all()
        assert all(parent < 0 or own[node] < own[parent] for node, parent in enumerate(tree.parents))
