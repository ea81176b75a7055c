"""What a link is told while its drafters hang, by a clock of the test's own."""

from __future__ import annotations

import pytest

from slipstream.generation_types import FinishReason
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.draft_source import Committed, NoDrafts, Opening
from verify_service.core.request import RequestKey, SamplingParams
from verify_service.draft_link.held_back import HEARTBEAT_SECONDS, MAX_TOKENS, PausingLink

ONE, TWO, THREE = RequestKey(1, 1), RequestKey(1, 2), RequestKey(1, 3)
TREE = TokenTree((7,), (-1,))


class Link(NoDrafts):
    """Notes what it is told."""

    def __init__(self):
        self.is_deaf = False
        self.told = []

    def paused(self):
        return self.is_deaf

    def begin(self, opening):
        self.told.append(opening.key)

    def commit(self, commits):
        self.told.append([(each.key, each.token_ids, each.total_length, each.max_nodes) for each in commits])
        return ()

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
    return PausingLink(link, clock=lambda: now[0])


def committed(key, total, *tokens):
    return Committed(key, tokens, total, 4, 3)


def opening(key):
    return Opening(key, "x", (1, 2), 2, SamplingParams(max_tokens=4), 0, "", "", 0)


def test_a_link_whose_drafters_answer_is_told_everything_at_once(link, held):
    held.begin(opening(ONE))
    assert held.accepts_commits()
    held.commit([committed(ONE, 3, 5)])
    assert held.collect([ONE]) == [TREE]
    assert held.expects([ONE])
    held.end(ONE, FinishReason.STOP)
    assert link.told == [ONE, [(ONE, (5,), 3, 4)], FinishReason.STOP]


def test_while_drafters_hang_nothing_need_be_told_but_once_in_a_while(link, held, now):
    link.is_deaf = True
    for _ in range(3):
        assert not held.accepts_commits()
        assert held.collect([ONE, TWO]) == [None, None]
        assert not held.expects([ONE])
    now[0] += HEARTBEAT_SECONDS
    assert held.accepts_commits()
    held.commit([committed(ONE, 7, 10, 11, 12, 13), committed(TWO, 15, 6)])
    assert link.told == [[(ONE, (10, 11, 12, 13), 7, 2), (TWO, (6,), 15, 2)]], "trees show that one goes on"
    assert held.collect([ONE]) == [None], "the drafters still hang"
    assert not held.accepts_commits()


def test_the_first_commit_after_one_is_heard_brings_the_link_up_to_date(link, held):
    link.is_deaf = True
    assert not held.accepts_commits()
    link.is_deaf = False
    assert held.collect([ONE]) == [None], "trees would be for a state that has passed"
    assert held.accepts_commits()
    held.commit([committed(ONE, 5, 6, 7)])
    assert link.told == [[(ONE, (6, 7), 5, 4)]]
    assert held.collect([ONE]) == [TREE]


def test_no_more_is_told_at_once_than_one_message_takes(link, held):
    link.is_deaf = True
    assert not held.accepts_commits()
    link.is_deaf = False
    half = MAX_TOKENS // 2
    held.commit([committed(key, 3 + half, *range(half)) for key in (ONE, TWO, THREE)])
    assert [[key for key, *_ in told] for told in link.told] == [[ONE, TWO], [THREE]]
