"""What a refused request is told to wait, by a clock of the test's own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gateway.generation import queue_wait
from gateway.generation.queue_wait import QueueWait


class Clock:
    """time.monotonic() in seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(queue_wait, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_what_is_ahead_drains_at_the_rate_of_what_has_finished(clock: Clock) -> None:
    queue = QueueWait()
    queue.begin(50)
    for _ in range(10):
        clock.now += 0.5
        queue.finish()
        queue.end(1)
    queue.begin(1)
    assert queue.seconds(refused=1) == pytest.approx(40 / 2.0)


def test_only_the_newest_half_minute_counts(clock: Clock) -> None:
    queue = QueueWait()
    queue.begin(20)
    for _ in range(10):
        queue.finish()
    clock.now += 100.0
    queue.finish()
    queue.finish()
    assert queue.seconds(refused=0) == 60.0
    queue.end(18)
    assert queue.seconds(refused=0) == pytest.approx(2 * 30.0 / 2)


def test_time_without_requests_does_not_count(clock: Clock) -> None:
    queue = QueueWait()
    queue.begin(1)
    queue.finish()
    queue.end(1)
    clock.now += 20.0
    queue.begin(8)
    clock.now += 1.0
    queue.finish()
    assert queue.seconds(refused=0) == pytest.approx(8.0)


def test_the_answer_has_bounds(clock: Clock) -> None:
    queue = QueueWait()
    assert queue.seconds(refused=0) == 1.0
    queue.begin(1)
    assert queue.seconds(refused=1) == 1.0
    queue.begin(1000)
    clock.now += 1000.0
    assert queue.seconds(refused=0) == 60.0
