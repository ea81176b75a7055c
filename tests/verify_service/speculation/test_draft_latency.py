"""When a budget hears of what steps wait for trees, and of how long."""

from __future__ import annotations

import pytest

from verify_service.core.step_time_model import StepTimeModel
from verify_service.speculation.acceptance_model import AcceptanceModel
from verify_service.speculation.draft_latency import DraftLatency
from verify_service.speculation.goodput import GoodputOptimizer


class Budget(GoodputOptimizer):
    """Notes the waits."""

    def __init__(self) -> None:
        super().__init__(StepTimeModel([(1, 1, 1.0)]), AcceptanceModel())
        self.heard: list[float] = []
        self.behind: list[bool] = []
        self.of_probe: list[bool] = []

    def observe_wait(
        self,
        seconds: float,
        *,
        asked: int,
        arrived: int,
        levels: int,
        running: int = 0,
        behind: bool = False,
        catching_up: bool = False,
        of_probe: bool = False,
    ) -> None:
        assert (asked, arrived, levels, running) == (3, 2, 4, 5)
        self.heard.append(seconds)
        self.behind.append(behind)
        self.of_probe.append(of_probe)


class Clock:
    now = 0.0

    def read(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("verify_service.speculation.draft_latency.time.perf_counter", made.read)
    return made


def wait(waits: DraftLatency, clock: Clock, seconds: float, *, device_trees: bool = False) -> float:
    waits.begin()
    clock.now += seconds
    return waits.end(asked=3, arrived=2, levels=4, running=5, device_trees=device_trees)


def test_a_wait_is_told_of_once(clock: Clock) -> None:
    budget = Budget()
    waits = DraftLatency(budget)
    assert wait(waits, clock, 0.25) == 0.25
    assert waits.seconds == 0.25
    waits.flush()
    assert budget.heard == []
    waits.settle(None)
    waits.settle(None)
    waits.flush()
    waits.flush()
    assert budget.heard == [0.25]


def test_trees_that_the_host_reads_late_are_waited_for_until_then_where_no_engine_tells_the_time(clock: Clock) -> None:
    budget = Budget()
    waits = DraftLatency(budget)
    wait(waits, clock, 0.0, device_trees=True)
    clock.now += 0.5
    waits.read()
    assert waits.seconds == 0.5
    clock.now += 1.0
    waits.settle(None)
    wait(waits, clock, 0.125)  # before anybody was told
    waits.settle(None)
    waits.flush()
    assert budget.heard == [0.5, 0.125]


def test_trees_of_a_device_cost_what_the_engine_idles_however_late_the_host_reads_them(clock: Clock) -> None:
    budget = Budget()
    waits = DraftLatency(budget)
    for idle in (0.25, 0.75):
        wait(waits, clock, 0.0, device_trees=True)
        clock.now += 2.0
        waits.read()
        waits.settle(idle)
    waits.flush()
    assert budget.heard == [0.25, 0.75]
    assert budget.behind == [True, True]
    wait(waits, clock, 0.0, device_trees=True)
    assert waits.seconds == pytest.approx(0.25 + 0.1 * 0.5)
    waits.settle(0.0)
    wait(waits, clock, 0.125)
    assert waits.seconds == 0.125


def test_what_the_engine_idles_beyond_a_wait_is_its_price_too_but_no_more_than_some_passes(clock: Clock) -> None:
    budget = Budget()
    waits = DraftLatency(budget)
    waits.settle(3.0)
    assert waits.seconds == 0.0
    wait(waits, clock, 1.0)
    waits.settle(0.5)
    wait(waits, clock, 1.0)
    assert waits.seconds == 1.0
    waits.settle(100.0)
    waits.flush()
    assert budget.heard == [1.0, 4.0]
    assert budget.behind == [False, False]
    wait(waits, clock, 1.0)
    assert waits.seconds == pytest.approx(1.3)


def test_a_step_that_was_not_launched_has_no_wait(clock: Clock) -> None:
    budget = Budget()
    waits = DraftLatency(budget)
    wait(waits, clock, 0.25, device_trees=True)
    clock.now += 1000.0
    waits.begin()  # of a step that asks for nothing
    waits.read()
    waits.flush()
    assert (budget.heard, waits.seconds) == ([], 0.0)


def test_a_wait_that_a_budget_refuses_is_told_of_once(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = DraftLatency(Budget())
    told = []

    def refuse(seconds: float, **_: int) -> None:
        told.append(seconds)
        raise ZeroDivisionError

    monkeypatch.setattr(Budget, "observe_wait", lambda self, *args, **kwargs: refuse(*args, **kwargs))
    wait(waits, clock, 0.25)
    waits.settle(None)
    with pytest.raises(ZeroDivisionError):
        waits.flush()
    waits.flush()
    assert told == [0.25]


def test_a_wait_is_of_the_probe_that_asked_though_it_is_over_as_the_wait_is_told(clock: Clock) -> None:
    budget = Budget()
    waits = DraftLatency(budget)
    while not budget.gate.probing:
        budget.gate.step(profitable=False)
    wait(waits, clock, 0.25)
    while budget.gate.probing:
        budget.gate.step(profitable=False)
    wait(waits, clock, 0.25)
    waits.settle(None)
    waits.flush()
    assert budget.of_probe == [True, False]


def test_of_two_steps_under_way_each_has_a_wait_of_its_own(clock: Clock) -> None:
    budget = Budget()
    waits = DraftLatency(budget)
    wait(waits, clock, 0.0, device_trees=True)
    waits.begin(ahead=True)
    waits.end(asked=3, arrived=2, levels=4, running=5, device_trees=True)
    assert waits.settle(0.25)
    clock.now += 9.0
    waits.read()
    assert waits.settle(0.5)
    assert not waits.settle(0.5)
    waits.flush()
    assert budget.heard == [0.25, 0.5]


def test_a_step_ahead_of_one_without_trees_waits_from_the_decision_on(clock: Clock) -> None:
    budget = Budget()
    waits = DraftLatency(budget)
    waits.begin()
    waits.begin(ahead=True)
    waits.end(asked=3, arrived=2, levels=4, running=5, device_trees=True)
    clock.now += 9.0
    assert not waits.settle(None), "its own wait has not begun"
    clock.now += 0.5
    waits.read()
    assert waits.settle(None)
    waits.flush()
    assert budget.heard == [0.5]
