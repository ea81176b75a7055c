"""Times of passes by the device's clock."""

from __future__ import annotations

import time

import pytest
import torch

from slipstream_kernels.models.gpu.graph.pass_clock import MEASURED, PassClock, PassTimes


def test_a_cpu_has_no_clock() -> None:
    clock = PassClock(torch.device("cpu"))
    clock.begin()
    assert clock.end() is None


@pytest.mark.gpu
def test_passes_take_what_the_device_works_and_idle_in_between() -> None:
    clock, work = PassClock(torch.device("cuda")), torch.ones(4096, 4096, device="cuda")
    (work @ work).sum().item()
    for number in range(2 * MEASURED):
        clock.begin()
        for _ in range(20):
            work @ work
        times = clock.end()
        assert times is not None
        idle, busy = times.seconds()
        assert busy > 1e-4
        assert idle == 0.0 if number == 0 else idle >= 0.02
        time.sleep(0.02)


class _Event:
    """One that has come, `at` so many milliseconds."""

    def __init__(self, at: float) -> None:
        self.at = at

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pytest.fail("who waits for what has come gives up the interpreter's lock")

    def elapsed_time(self, other: _Event) -> float:
        return other.at - self.at


def test_what_is_queued_behind_a_pass_is_told_apart_from_the_wait_for_it() -> None:
    times = PassTimes(*map(_Event, (1.0, 3.0, 9.0)))  # type: ignore[arg-type]
    assert times.seconds() == pytest.approx((0.002, 0.006))
    assert times.behind(_Event(9.5), _Event(11.0)) == pytest.approx((0.0005, 0.0015))  # type: ignore[arg-type]


@pytest.mark.gpu
def test_a_device_that_has_nothing_to_do_behind_its_pass_waits() -> None:
    clock, work = PassClock(torch.device("cuda")), torch.ones(4096, 4096, device="cuda")
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for rests in (0.0, 0.02):
        clock.begin()
        work @ work
        times = clock.end()
        assert times is not None
        if rests:
            torch.cuda.synchronize()
            time.sleep(rests)
        begun.record()
        work @ work
        ended.record()
        ended.synchronize()
        waited, busy = times.behind(begun, ended)
        assert busy > 1e-5
        assert waited >= rests
