"""What a link is told while its drafters hang, by a clock of the test's own."""

from __future__ import annotations

import pytest

from slipstream_kernels.token_tree import TokenTree
from verify_service.held_back import MOST_TOKENS, TOLD_SECONDS, HeldBack
from verify_service.request import FinishReason, RequestKey, SamplingParams
from verify_service.tree_source import Committed, NoTrees, Opening

ONE, TWO = RequestKey(1, 1), RequestKey(1, 2)
TREE = TokenTree((7,), (-1,))


class Link(NoTrees):
    """Notes what it is told."""

    def __init__(self):
        self.is_deaf = False
        self.told = []

    def deaf(self):
        return self.is_deaf

    def begin(self, opening):
        self.told.append(opening.key)

    def commit(self, commits):
        self.told.append([(each.key, each.token_ids, each.total_length) for each in commits])

    def collect(self, wanted):
        return [TREE] * len(wanted)

    def expects(self, keys):
        return True

    def end(self, key, reason):
        self.told.append(reason)


@pytest.fixture
def link():
    return Link()


@pytest.fixture
def now():
    return [100.0]


@pytest.fixture
def held(link, now):
    return HeldBack(link, clock=lambda: now[0])


def committed(key, total, *tokens):
    return Committed(key, tokens, total, 4, 3)


def opening(key):
    return Opening(key, "x", (1, 2), 2, SamplingParams(max_tokens=4), 0, "", "", 0)


def test_a_link_that_listens_is_told_everything_at_once(link, held):
    held.begin(opening(ONE))
    held.commit([committed(ONE, 3, 5)])
    assert held.collect([ONE]) == [TREE]
    assert held.expects([ONE])
    held.end(ONE, FinishReason.STOP)
    assert link.told == [ONE, [(ONE, (5,), 3)], FinishReason.STOP]


def test_while_drafters_hang_commits_are_told_in_one_piece(link, held, now):
    link.is_deaf = True
    held.commit([committed(ONE, 3, 5), committed(TWO, 9, 6)])
    assert len(link.told) == 1, "by what comes first the link itself has to find out"
    for step in range(3):
        assert held.collect([ONE, TWO]) == [None, None]
        assert not held.expects([ONE])
        held.commit([committed(TWO, 11 + 2 * step, 6, step), committed(ONE, 4 + step, 10 + step)])
    assert len(link.told) == 1
    now[0] += TOLD_SECONDS
    held.commit([committed(ONE, 7, 13)])
    assert link.told[1:] == [[(TWO, (6, 0, 6, 1, 6, 2), 15), (ONE, (10, 11, 12, 13), 7)]]
    assert held.collect([ONE]) == [None], "the drafters still hang"


def test_the_first_commit_after_one_is_heard_brings_the_link_up_to_date(link, held):
    link.is_deaf = True
    held.commit([committed(ONE, 3, 5)])
    held.commit([committed(ONE, 4, 6)])
    link.is_deaf = False
    assert held.collect([ONE]) == [None], "trees would be for a state that has passed"
    held.commit([committed(ONE, 5, 7)])
    assert link.told[1:] == [[(ONE, (6, 7), 5)]]
    assert held.collect([ONE]) == [TREE]


def test_no_more_is_held_back_than_one_message_takes(link, held):
    link.is_deaf = True
    held.commit([committed(ONE, 3, 5)])
    held.commit([committed(ONE, 3 + MOST_TOKENS, *range(MOST_TOKENS))])
    assert len(link.told[1][0][1]) == MOST_TOKENS


def test_a_new_request_finds_nothing_held_back_under_its_key(link, held):
    link.is_deaf = True
    held.commit([committed(ONE, 3, 5)])
    held.commit([committed(ONE, 4, 6)])
    held.end(ONE, FinishReason.STOP)
    held.begin(opening(ONE))
    assert link.told[1:] == [FinishReason.STOP, [(ONE, (6,), 4)], ONE]
    held.commit([committed(ONE, 3, 9)])
    link.is_deaf = False
    held.commit([])
    assert link.told[-1] == [(ONE, (9,), 3)]
