"""How long a launch ahead of a decision may wait for requests."""

from __future__ import annotations

import pytest

from verify_service.engine import launch_clock
from verify_service.engine.launch_clock import LaunchClock


class Time:
    now = 100.0


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr("verify_service.engine.launch_clock.time.perf_counter", lambda: time.now)
    return time


def decide(clock: LaunchClock, at: Time, *rounds: float) -> None:
    for seconds in rounds:
        at.now += seconds
        clock.decided(at.now, late=False)


def launch(clock: LaunchClock, at: Time, seconds: float, *, alone: bool = False) -> None:
    clock.launched(at.now, seconds, alone=alone)


def test_nothing_waits_before_rounds_and_launches_are_known(at: Time) -> None:
    clock = LaunchClock()
    decide(clock, at, *[0.02] * 9)
    assert clock.left <= 0
    launch(clock, at, 0.001)
    assert clock.left > 0
    fresh = LaunchClock()
    launch(fresh, at, 0.001)
    decide(fresh, at, 0.02, 0.02)
    assert fresh.left <= 0


def test_the_quickest_round_and_the_longest_launch_are_counted_on(at: Time) -> None:
    clock = LaunchClock()
    launch(clock, at, 0.002)
    launch(clock, at, 0.001)
    decide(clock, at, 0.5, 0.03, 0.02, 0.04, 0.03)
    lead = 2 * 0.002 + launch_clock._SPARE
    assert clock.left == pytest.approx(0.02 - lead)
    at.now += 0.01
    assert clock.left == pytest.approx(0.01 - lead)
    at.now += 0.01
    assert clock.left < 0


def test_what_is_long_ago_counts_no_longer(at: Time) -> None:
    clock = LaunchClock()
    launch(clock, at, 5.0)
    for _ in range(8):
        launch(clock, at, 0.001)
    decide(clock, at, 0.001, *[0.03] * 4)
    assert clock.left == pytest.approx(0.03 - 2 * 0.001 - launch_clock._SPARE)


def test_a_wait_that_was_too_long_is_not_counted_on(at: Time) -> None:
    clock = LaunchClock()
    launch(clock, at, 0.001)
    decide(clock, at, *[0.2] * 4)
    at.now += clock.left + 0.001
    clock.decided(at.now, late=True)  # after 0.02 s already
    for _ in range(3):
        assert clock.left <= 0
        decide(clock, at, 0.02)
    assert clock.left <= 0
    decide(clock, at, 0.02)
    assert 0 < clock.left < 0.02


def test_time_without_any_step_is_no_round(at: Time) -> None:
    clock = LaunchClock()
    for _ in range(5):
        at.now += 30.0
        launch(clock, at, 0.001, alone=True)
        decide(clock, at, 0.02)
    assert clock.left == pytest.approx(0.02 - 2 * 0.001 - launch_clock._SPARE)
    at.now += 30.0
    launch(clock, at, 0.001, alone=True)
    assert clock.left == pytest.approx(0.02 - 2 * 0.001 - launch_clock._SPARE)
