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
        clock.decided(at.now)


def test_nothing_waits_before_rounds_and_launches_are_known(at: Time) -> None:
    clock = LaunchClock()
    decide(clock, at, *[0.02] * 9)
    assert clock.left <= 0
    clock.launched(0.001)
    assert clock.left > 0
    fresh = LaunchClock()
    fresh.launched(0.001)
    decide(fresh, at, 0.02, 0.02)
    assert fresh.left <= 0


def test_the_quickest_round_and_the_longest_launch_are_counted_on(at: Time) -> None:
    clock = LaunchClock()
    clock.launched(0.002)
    clock.launched(0.001)
    decide(clock, at, 0.5, 0.03, 0.02, 0.04, 0.03)
    lead = 2 * 0.002 + launch_clock._SPARE
    assert clock.left == pytest.approx(0.02 - lead)
    at.now += 0.01
    assert clock.left == pytest.approx(0.01 - lead)
    at.now += 0.01
    assert clock.left < 0


def test_what_is_long_ago_counts_no_longer(at: Time) -> None:
    clock = LaunchClock()
    clock.launched(5.0)
    for _ in range(8):
        clock.launched(0.001)
    decide(clock, at, 0.001, *[0.03] * 4)
    assert clock.left == pytest.approx(0.03 - 2 * 0.001 - launch_clock._SPARE)
