"""A drafter that takes longer than the deadline of a CPU, in virtual time: what steps wait for it, and when not."""

from __future__ import annotations

import logging

import pytest

from slipstream_kernels.draft_protocol.records import Commit, TreeReply
from slipstream_kernels.token_tree import TokenTree
from tests.verify_service.draft_link.transports.test_in_process import FACTS, KEY, LateHost
from verify_service.core.draft_source import Committed, RequestOpening, WaitUrgency
from verify_service.core.request import SamplingParams
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.link_config import LinkConfig
from verify_service.draft_link.link_state import DrafterState
from verify_service.draft_link.transports.in_process import attach_host

LIMIT, REACH = 0.02, 0.25
NEXT_TO_NONE = 1e-9


class Played:
    """Steps of one request whose text is fours, and whose drafter guesses fours, or fives where it is `wrong`."""

    def __init__(
        self, takes: float, haste: WaitUrgency, *, plain: float = 0.01, wrong: bool = False, reach: float | None = REACH
    ) -> None:
        """Its trees take so long, a plain step `plain` seconds."""
        self.host = LateHost(takes)
        self._plain = plain
        self._haste = haste
        self._tree = TokenTree.chain((5, 5, 5) if wrong else (4, 4, 4))
        self.link = DraftLink(FACTS, LinkConfig(deadline=LIMIT, deadline_reach=reach), clock=lambda: self.host.now)
        attach_host(self.link, self.host)
        self.link.begin(RequestOpening(KEY, "p", (1, 2, 3), 3, SamplingParams(seed=9), 0, "t", "", 0))
        self._length, self._tokens = 4, (8,)
        self._pending: tuple[float, TreeReply] | None = None
        self.trees = 0

    @property
    def drafter(self) -> DrafterState:
        (state,) = self.link.state().drafters
        return state

    def step(self) -> float:
        """One step; returns how long it waited. What is late comes once the drafter is through, and stays its last."""
        host = self.host
        self._arrive()
        self.link.commit([Committed(KEY, self._tokens, self._length, 6, 3, haste=self._haste)])
        commit = host.batches[-1][0]
        assert isinstance(commit, Commit)
        answer, asked_at = TreeReply(commit.stamp, self._tree), host.now
        host.replies, host.offered = ([answer] if self._pending is None else []), 0.0
        (tree,) = self.link.collect([KEY])
        if tree is None and self._pending is None:
            self._pending = asked_at + host.takes, answer
        self.trees += tree is not None
        host.now += self._plain
        self._tokens = (4,) * (4 if tree is not None and tree.token_ids[0] == 4 else 1)
        self._length += len(self._tokens)
        return host.offered

    def _arrive(self) -> None:
        if self._pending is not None and self._pending[0] <= self.host.now:
            self.host.answer([self._pending[1]])
            self._pending = None


def test_requests_that_insist_get_trees_of_a_slow_drafter() -> None:
    played = Played(0.09, WaitUrgency.INSISTENT)
    first = [played.step() for _ in range(3)]
    assert max(first) <= LIMIT + NEXT_TO_NONE
    for _ in range(60):
        played.step()
    assert played.trees > 30
    assert played.drafter.answer == pytest.approx(0.09)
    assert played.drafter.deadline == pytest.approx(1.5 * 0.09)
    assert played.drafter.stats.late >= 1


@pytest.mark.parametrize(
    "changes",
    [
        {"haste": WaitUrgency.HURRIED},
        {"haste": WaitUrgency.WEIGHED},  # three tokens more in ten plain steps' time
        {"haste": WaitUrgency.INSISTENT, "takes": 0.3},
        {"haste": WaitUrgency.INSISTENT, "wrong": True},
        {"haste": WaitUrgency.INSISTENT, "reach": None},
    ],
    ids=str,
)
def test_nobody_waits_longer_where_others_are_held_up_or_it_is_in_vain(changes) -> None:
    played = Played(**({"takes": 0.1} | changes))
    assert max(played.step() for _ in range(100)) <= LIMIT + NEXT_TO_NONE
    assert played.trees == 0
    assert played.drafter.stats.late >= 3


def test_where_trees_decide_on_speed_alone_they_are_waited_for_as_long_as_they_save_time() -> None:
    played = Played(0.04, WaitUrgency.WEIGHED, plain=0.03)
    for _ in range(60):
        played.step()
    assert played.trees > 30
    assert played.drafter.answer == pytest.approx(0.04)


def test_one_that_hangs_after_it_was_waited_for_costs_one_deadline() -> None:
    played = Played(0.09, WaitUrgency.INSISTENT)
    for _ in range(60):
        played.step()
    played.host.takes = 1e9
    waits = [played.step() for _ in range(200)]
    assert sum(waits) <= 1.5 * 0.09 + NEXT_TO_NONE


def test_trees_that_are_all_too_late_are_said_so_once(caplog: pytest.LogCaptureFixture) -> None:
    played = Played(0.5, WaitUrgency.INSISTENT)
    with caplog.at_level(logging.WARNING):
        for _ in range(4000):
            played.step()
    (said,) = [record.getMessage() for record in caplog.records if "too late" in record.getMessage()]
    assert "500 ms after they were asked for" in said
