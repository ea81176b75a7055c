"""A change of load is answered soon and the default is near the best fixed budget, in virtual time: no clock is read.

Prices are those of an H200, an 8B model and a head in the process that is right 7 times of 10 at each level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest

from slipstream_kernels.draft_protocol.records import RoundCost
from support.virtual_rounds import DRAFT_MODEL, FAST_HEAD, SLOW_HEAD, Machine, Round, Rounds

LOADS = (1, 4, 16, 64, 256)
NEAR = 0.97
"""Of the best fixed budget."""
NOTHING_LOST = 0.98
"""Of plain decoding."""
SOON = 32
"""Steps in which a change is to be answered."""
HEAD_COSTS = [RoundCost(n, levels, FAST_HEAD.draft_seconds(n, levels)) for n in (1, 4, 16, 64) for levels in (1, 5)]
WINDOW = 16
"""Steps over which throughput is taken."""


def steps_to_adapt(rounds: Rounds, log: Sequence[Round], best: float) -> int:
    """Steps after which throughput is near the best; all of them where it never is."""
    windows = range(len(log) - WINDOW)
    near = (at for at in windows if rounds.share_of_plain(log[at : at + WINDOW]) >= NEAR * best)
    return next(near, len(log))


def lowest_second(rounds: Rounds, log: Sequence[Round]) -> float:
    """Of throughput over that of plain decoding, whenever the second begins."""
    lowest, first, long = math.inf, 0, 0.0
    for end, each in enumerate(log, 1):
        long += each.seconds
        while long - log[first].seconds >= 1.0:
            long -= log[first].seconds
            first += 1
        if long >= 1.0:
            lowest = min(lowest, rounds.share_of_plain(log[first:end]))
    return lowest


@pytest.mark.parametrize("running", LOADS)
def test_the_default_is_near_the_best_fixed_budget(monkeypatch: pytest.MonkeyPatch, running: int) -> None:
    rounds, best = Rounds(monkeypatch, running, machine=FAST_HEAD), FAST_HEAD.best_fixed(running)
    log = rounds.rounds(SOON + WINDOW + 150)
    assert steps_to_adapt(rounds, log, best) <= SOON
    assert rounds.share_of_plain(log[SOON:]) >= NEAR * best
    assert rounds.share_of_plain(log) >= NOTHING_LOST


@pytest.mark.parametrize("path", [(1, 16, 64, 1), (1, 64, 16, 1), (64, 4, 64), (256, 16, 256), (256, 64, 1)], ids=str)
def test_a_change_of_load_is_answered_within_32_steps(monkeypatch: pytest.MonkeyPatch, path: tuple[int, ...]) -> None:
    rounds = Rounds(monkeypatch, path[0], machine=FAST_HEAD)
    rounds.rounds(200)
    for running in path[1:]:
        rounds.resize(running)
        log, best = rounds.rounds(200), FAST_HEAD.best_fixed(running)
        assert steps_to_adapt(rounds, log, best) <= SOON
        assert rounds.share_of_plain(log[SOON:]) >= NEAR * best
        assert rounds.share_of_plain(log[:SOON]) >= NOTHING_LOST - 0.03


@pytest.mark.parametrize("path", [(16,), (64, 16, 64), (1, 64, 1)], ids=str)
@pytest.mark.parametrize("machine", [SLOW_HEAD, DRAFT_MODEL], ids=["slow head", "draft model"])
def test_of_a_dear_drafter_a_load_at_which_it_does_not_pay_is_known_at_once_and_stays_so(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, path: tuple[int, ...]
) -> None:
    """At 64 requests the best budget is none, or next to none."""
    rounds, whole = Rounds(monkeypatch, path[0], machine=machine), []
    for running in path:
        rounds.resize(running)
        log, best = rounds.rounds(SOON + 250), machine.best_fixed(running)
        assert steps_to_adapt(rounds, log, best) <= SOON, running
        assert rounds.share_of_plain(log[: SOON + 64]) >= NEAR * best, "no trial of what is known"
        assert lowest_second(rounds, log[SOON:]) >= NEAR * best, running
        whole += log
    assert lowest_second(rounds, whole) >= NOTHING_LOST


@pytest.mark.parametrize(("lie", "least"), [(1e-6, 0.96), (1e-2, 0.96), (1e3, 1.0)])
@pytest.mark.parametrize("running", [1, 16, 64])
def test_what_a_drafter_says_of_its_rounds_costs_little_if_it_is_wrong(
    monkeypatch: pytest.MonkeyPatch, running: int, lie: float, least: float
) -> None:
    """A drafter ten times too slow says that it is quick, and one that is quick that it is slow."""
    slow = 10.0 if lie < 1.0 else 1.0
    said = [
        RoundCost(requests, levels, lie * slow * FAST_HEAD.draft_seconds(requests, levels))
        for requests in (1, 4, 16, 64)
        for levels in (1, 5)
    ]
    rounds = Rounds(monkeypatch, running, machine=FAST_HEAD, costs=said)
    rounds.head.slow = slow
    log, best = rounds.rounds(400), FAST_HEAD.best_fixed(running, slow=slow)
    assert rounds.share_of_plain(log) >= least
    assert rounds.share_of_plain(log[SOON:]) >= NOTHING_LOST
    assert rounds.share_of_plain(log[-150:]) >= NEAR * best, "what is measured has outweighed it"


@pytest.mark.parametrize(("running", "held_up"), [(16, 3), (16, 20), (64, 3)])
def test_rounds_for_many_that_were_measured_on_a_busy_machine_keep_nobody_from_drafting(
    monkeypatch: pytest.MonkeyPatch, running: int, held_up: int
) -> None:
    said = [cost._replace(seconds=cost.seconds * (held_up if cost.requests >= 16 else 1)) for cost in HEAD_COSTS]
    rounds, best = Rounds(monkeypatch, running, machine=FAST_HEAD, costs=said), FAST_HEAD.best_fixed(running)
    log = rounds.rounds(SOON + WINDOW + 150)
    assert steps_to_adapt(rounds, log, best) <= SOON
    assert rounds.share_of_plain(log[SOON:]) >= NEAR * best


@pytest.mark.parametrize("machine", [FAST_HEAD, SLOW_HEAD], ids=["fast head", "slow head"])
def test_nothing_is_lost_where_load_crosses_thresholds_again_and_again(
    monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    rounds, log = Rounds(monkeypatch, 16, machine=machine), []
    for running in (64, 48, 64, 32, 64, 16, 64, 48, 33, 31, 33, 31, 64, 60):
        rounds.resize(running)
        log += rounds.rounds(60)
    assert lowest_second(rounds, log) >= NOTHING_LOST


@pytest.mark.parametrize("seconds", [8, pytest.param(30, marks=pytest.mark.slow)])
def test_nothing_is_lost_at_any_second_of_a_ramp(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    rounds, log, now = Rounds(monkeypatch, 1, machine=FAST_HEAD), [], 0.0
    while now < seconds:
        rounds.resize(max(1, round(128 * (1 - abs(2 * now / seconds - 1)))))
        log += rounds.rounds(8)
        now += sum(each.seconds for each in log[-8:])
    assert lowest_second(rounds, log) >= NOTHING_LOST


@pytest.mark.parametrize("context", [1024, 8192, 32768])
@pytest.mark.parametrize("path", [(16, 1), (64, 16, 64), (64, 1, 64)], ids=str)
def test_a_context_that_costs_more_than_the_model_is_priced(
    monkeypatch: pytest.MonkeyPatch, context: int, path: tuple[int, ...]
) -> None:
    rounds = Rounds(monkeypatch, path[0], machine=FAST_HEAD)
    rounds.context = context
    for before, running in pairwise((0, *path)):
        rounds.resize(running)
        log, best = rounds.rounds(200), FAST_HEAD.best_fixed(running, context=context)
        assert steps_to_adapt(rounds, log, best) <= SOON, (before, running)
        assert rounds.share_of_plain(log[SOON:]) >= NEAR * best, (before, running)


@pytest.mark.parametrize("running", [1, 16, 64])
def test_a_drafter_that_gets_slow_is_left_and_found_again(monkeypatch: pytest.MonkeyPatch, running: int) -> None:
    rounds, slow = Rounds(monkeypatch, running, machine=FAST_HEAD), 10.0
    rounds.rounds(200)
    rounds.head.slow = slow
    log, best = rounds.rounds(400), FAST_HEAD.best_fixed(running, slow=slow)
    assert steps_to_adapt(rounds, log, best) <= SOON
    assert rounds.share_of_plain(log[SOON:]) >= NOTHING_LOST
    rounds.head.slow = 1.0
    log, best = rounds.rounds(500), FAST_HEAD.best_fixed(running)
    assert steps_to_adapt(rounds, log, best) <= 300
    assert rounds.share_of_plain(log) >= NOTHING_LOST


@pytest.mark.parametrize("running", [1, 16, 64])
def test_a_head_that_got_better_is_found_out(monkeypatch: pytest.MonkeyPatch, running: int) -> None:
    rounds = Rounds(monkeypatch, running, machine=FAST_HEAD)
    rounds.head.chances = (0.1,)
    rounds.rounds(100)
    assert rounds.share_of_plain(rounds.rounds(300)) >= NOTHING_LOST
    rounds.head.chances = (0.7,)
    assert steps_to_adapt(rounds, rounds.rounds(500), FAST_HEAD.best_fixed(running)) <= 300
