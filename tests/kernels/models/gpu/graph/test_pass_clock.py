"""Times of passes by the device's clock."""

from __future__ import annotations

import time

import pytest
import torch

from slipstream_kernels.models.gpu.graph.pass_clock import MEASURED, PassClock


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
