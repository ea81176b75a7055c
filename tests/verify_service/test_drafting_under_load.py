"""What drafting decides is worth it at 1, 16 and 64 requests, in virtual time: nothing here depends on a clock."""

from __future__ import annotations

import pytest

from support.virtual_rounds import Rounds

CHAIN = (0.7,)
TREE = (0.7, 0.1, 0.1, 0.05)
PROMPT_BYTES = 11 << 20
"""Of the states of a prompt of 450 tokens."""


@pytest.mark.parametrize(("chances", "least"), [(CHAIN, 1.85), (TREE, 2.2)])
def test_one_request_is_drafted_for(monkeypatch: pytest.MonkeyPatch, chances: tuple[float, ...], least: float) -> None:
    rounds = Rounds(monkeypatch, 1)
    rounds.head.chances = chances
    rounds.run(50)
    faster, _, nodes = rounds.run(300)
    assert faster > least
    assert nodes > 4


@pytest.mark.parametrize("chances", [CHAIN, TREE])
def test_at_16_requests_trees_bring_what_they_can(monkeypatch: pytest.MonkeyPatch, chances: tuple[float, ...]) -> None:
    """The best fixed chain is worth 1.46 x plain decoding, one of 5 levels 1.40 x."""
    rounds = Rounds(monkeypatch, 16)
    rounds.head.chances = chances
    first, *_ = rounds.run(30)
    faster, seconds, _ = rounds.run(150)
    assert first > 1.3
    assert faster > 1.41
    assert seconds < 12e-3


@pytest.mark.parametrize("chances", [CHAIN, TREE])
def test_at_64_requests_nothing_is_lost(monkeypatch: pytest.MonkeyPatch, chances: tuple[float, ...]) -> None:
    rounds = Rounds(monkeypatch, 64)
    rounds.head.chances = chances
    assert rounds.run(60)[0] > 0.98
    assert rounds.run(200)[0] > 0.98


def test_16_short_texts_whose_prompts_are_cached_gain_once_their_states_have_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds = Rounds(monkeypatch, 16, tokens=96, lacking=PROMPT_BYTES)
    assert rounds.run(40)[0] > 0.97
    assert rounds.share_of_plain(rounds.rounds(200)) > 1.2


def test_64_short_texts_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(monkeypatch, 64, tokens=96, lacking=PROMPT_BYTES)
    assert rounds.run(60)[0] > 0.98
    assert rounds.run(120)[0] > 0.98


def test_a_poor_head_costs_little_and_one_that_got_better_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(monkeypatch, 16)
    rounds.head.chances = (0.15,)
    rounds.run(50)
    assert rounds.run(200)[0] > 0.98
    rounds.head.chances = CHAIN
    rounds.run(1800)
    assert rounds.run(50)[0] > 1.4


def test_a_slow_head_costs_little_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(monkeypatch, 16)
    rounds.head.slow = 5.0
    rounds.run(50)
    assert rounds.run(200)[0] > 0.98


def test_what_is_right_for_one_request_does_not_keep_16_from_drafting(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(monkeypatch, 1)
    rounds.head.chances = TREE
    assert rounds.run(200)[2] > 12
    rounds.resize(16)
    rounds.run(50)
    faster, _, nodes = rounds.run(100)
    assert faster > 1.4
    assert nodes < 8
