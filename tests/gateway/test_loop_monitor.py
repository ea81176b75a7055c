from __future__ import annotations

import asyncio
import time

import pytest

from gateway.loop_monitor import LoopMonitor
from gateway.metrics import Metrics


def worked(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def held_beyond(metrics: Metrics, bucket: float) -> float:
    count = metrics.registry.get_sample_value("slipstream_gateway_loop_hold_seconds_count") or 0.0
    below = metrics.registry.get_sample_value("slipstream_gateway_loop_hold_seconds_bucket", {"le": str(bucket)}) or 0.0
    return count - below


@pytest.mark.parametrize(("work", "beyond"), [(worked, 1), (time.sleep, 0)])
def test_a_hold_is_told_in_processor_time(work, beyond) -> None:
    """A thread that others kept from running is late, and held nobody."""
    metrics = Metrics()

    async def run() -> None:
        monitor = LoopMonitor(metrics, 0.02)
        monitor.start()
        await asyncio.sleep(0.05)
        work(0.3)
        await asyncio.sleep(0.05)
        monitor.stop()

    asyncio.run(run())
    assert held_beyond(metrics, 0.1) == beyond
    assert held_beyond(metrics, 0.5) == 0
    late = metrics.registry.get_sample_value("slipstream_gateway_loop_late_seconds_sum")
    assert late is not None
    assert late > 0.2
