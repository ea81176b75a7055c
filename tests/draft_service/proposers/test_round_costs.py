"""Rounds are measured as they are drafted, the quickest of some, and only as long as a start can bear."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from draft_service.proposers.base import (
    CompletedDraft,
    DraftFuture,
    DraftRequest,
    Opening,
    Proposer,
    SessionRefusedError,
)
from draft_service.proposers.round_costs import MOST_SECONDS, ROUNDS, measure_rounds
from slipstream_kernels.token_tree import TokenTree

CHAIN = [TokenTree((1,) * levels, tuple(range(-1, levels - 1))) for levels in range(8)]


class Formula(Proposer):
    """Takes `a + b * requests * levels` seconds of its own clock, and captures a graph at first."""

    name, max_nodes, max_depth = "formula", 8, 5

    def __init__(self, a: float = 1e-3, b: float = 1e-5, room: int = 64, silent_from: int = 65) -> None:
        self.now, self.a, self.b, self.room, self.silent_from = 0.0, a, b, room, silent_from
        self.open_sessions: set[int] = set()
        self.seen: set[tuple[int, int]] = set()
        self.states: list[tuple[int, int]] = []

    def open(self, session: int, opening: Opening) -> None:
        if len(self.open_sessions) == self.room:
            raise SessionRefusedError("no room")
        assert session <= 0, "requests have positive numbers"
        self.open_sessions.add(session)

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        assert session in self.open_sessions

    def take_features(self, session: int, first_position: int, features) -> None:
        self.states.append((first_position, features.shape[1]))

    def close(self, session: int) -> None:
        self.open_sessions.remove(session)

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        levels = max(each.max_depth for each in requests)
        self.now += self.a + self.b * len(requests) * levels
        if (len(requests), levels) not in self.seen:
            self.seen.add((len(requests), levels))
            self.now += 0.01
        if len(requests) >= self.silent_from:
            return [None for _ in requests]
        return [CHAIN[min(each.max_depth, each.max_nodes - 1)] for each in requests]


def measured(proposer: Formula, width: int = 0) -> dict[tuple[int, int], float]:
    costs = measure_rounds(proposer, width, lambda: proposer.now)
    assert not proposer.open_sessions
    return {(requests, levels): seconds for requests, levels, seconds in costs}


def test_each_number_of_requests_is_measured_with_one_level_and_with_all() -> None:
    costs = measured(Formula())
    assert list(costs) == [(n, levels) for n in (1, 4, 16, 64) for levels in (1, 5)]
    for (requests, levels), seconds in costs.items():
        assert seconds == pytest.approx(1e-3 + 1e-5 * requests * levels), "what is captured is no price"


def test_what_holds_up_some_rounds_in_a_row_is_no_price() -> None:
    class HeldUp(Formula):
        """Something else takes the machine from its second to its 15th round."""

        rounds = 0

        def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
            self.rounds += 1
            self.now += 0.004 if 1 < self.rounds < 15 else 0.0
            return super().propose(requests)

    assert measured(HeldUp()) == pytest.approx(measured(Formula()))


def test_slow_rounds_are_measured_of_few_requests() -> None:
    slow = Formula(a=MOST_SECONDS / (2 * ROUNDS), b=0.0)
    assert [requests for requests, _ in measured(slow)] == [1, 1]
    slower = Formula(a=2 * MOST_SECONDS)
    assert len(measured(slower)) == 2 and slower.now < 2 * (slower.a + 0.02)


@pytest.mark.parametrize("limits", [{"room": 15}, {"silent_from": 16}])
def test_what_not_all_requests_get_trees_of_says_nothing(limits: dict[str, int]) -> None:
    assert [requests for requests, _ in measured(Formula(**limits))] == [1, 1, 4, 4]


def test_states_come_one_for_each_token() -> None:
    proposer = Formula(room=1)
    measured(proposer, width=24)
    assert proposer.states == [(position, 24) for position in range(1 + 2 * ROUNDS)]


def test_a_proposer_that_fails_is_offered_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Formula):
        def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
            raise ValueError("broken")

    assert not measured(Failing())
    assert "rounds of formula for 1 requests cannot be measured" in caplog.text


class OnDevice(Formula):
    """Its host takes a millisecond before the device begins, and as long after it has ended."""

    follows, state_device = True, "cuda:0"

    def begin(self, requests: Sequence[DraftRequest]) -> DraftFuture:
        self.now += 1e-3
        return _UnderWay(self, requests)


class _UnderWay(CompletedDraft):
    def wait(self, seconds: float) -> bool:
        self.trees = self.proposer.propose(self.requests)
        return True

    def result(self) -> Sequence[TokenTree | None]:
        self.proposer.now += 1e-3
        return self.trees


def test_of_rounds_behind_passes_the_device_s_part_counts_alone() -> None:
    assert measured(OnDevice()) == pytest.approx(measured(Formula()))
