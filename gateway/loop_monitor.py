"""How long the event loop is held: nobody else is served meanwhile."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from gateway.metrics import Metrics

_NOTICED: Final = 0.005


class LoopMonitor:
    """A heartbeat on the loop, whose lateness is what the loop was held for.

    A *hold* is told in processor time of the loop's thread, so that a machine shared with others does not falsify it.
    As the thread may also have worked before the beat was due, the figure is an upper bound, by at most the interval
    between beats, in seconds. How *late* the beat was is wall-clock time. Beats that are less than 5 ms late are not
    told.
    """

    __slots__ = ("_due", "_interval", "_metrics", "_timer", "_used")

    def __init__(self, metrics: Metrics, interval: float) -> None:
        self._metrics = metrics
        self._interval = interval
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._used = 0.0

    def start(self) -> None:
        """Begin, on the running loop."""
        self._arm()

    def stop(self) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        self._due = time.monotonic() + self._interval
        self._used = time.thread_time()
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._beat)

    def _beat(self) -> None:
        late = time.monotonic() - self._due
        if late > _NOTICED:
            self._metrics.held(min(time.thread_time() - self._used, late + self._interval), late)
        self._arm()
