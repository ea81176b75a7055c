"""Seconds that steps wait for trees."""

from __future__ import annotations

import time
from typing import NamedTuple

from verify_service.speculation.goodput import GoodputOptimizer

_FAST = 0.1
_MOST_IDLE = 4.0
"""Passes of one row that one idle counts for, at most: what is compiled or captured then is not the price of trees."""


class _Wait(NamedTuple):
    """What trees have cost a step: `arrived` of `asked` came, the deepest with `levels` levels.

    `running` requests are in the step.
    """

    seconds: float
    asked: int
    arrived: int
    levels: int
    running: int


class DraftLatency:
    """Measures the wait of each step for its trees; `flush` hands finished waits to the optimizer."""

    def __init__(self, budget: GoodputOptimizer) -> None:
        self._optimizer = budget
        self._begun = 0.0
        """Start of the newest wait, time.perf_counter()."""
        self._beside = 0.0
        """Mean seconds that an engine idles for trees beyond the wait for them."""
        self._newest: _Wait | None = None
        self._over: list[_Wait] = []
        """Finished waits that the optimizer has not observed."""
        self._goes_on = False
        """Whether the newest wait goes on: the device has trees that the host has not read."""

    def begin(self) -> None:
        """Begin the wait of the step about to be launched. A wait still going on was of no step."""
        if self._newest is not None and not self._goes_on:
            self._over.append(self._newest)
        self._newest, self._goes_on = None, False
        self._begun = time.perf_counter()

    def end(self, *, asked: int, arrived: int, levels: int, running: int, device_trees: bool) -> float:
        """End the newest wait, unless the host waits for `device_trees` later. Return its seconds so far."""
        seconds = time.perf_counter() - self._begun
        self._newest, self._goes_on = _Wait(seconds, asked, arrived, levels, running), device_trees
        return seconds

    def read(self) -> None:
        """End a wait for device trees: the host has read them."""
        if self._goes_on and self._newest is not None:
            self._newest = self._newest._replace(seconds=time.perf_counter() - self._begun)
        self._goes_on = False

    def observe_idle(self, seconds: float) -> None:
        """Take in the seconds that the engine idled before the step just launched.

        All of them count as draft latency where the step waited for trees: without trees it had been launched earlier.
        """
        seconds = min(seconds, _MOST_IDLE * self._optimizer.step_time.seconds(1))
        if self._newest is not None and seconds > self._newest.seconds:
            self._beside += _FAST * (seconds - self._newest.seconds - self._beside)
            self._newest = self._newest._replace(seconds=seconds)

    @property
    def seconds(self) -> float:
        """Draft latency of the newest step before its pass, the engine's idle time for it included."""
        return self._beside + (0.0 if self._newest is None else self._newest.seconds)

    def flush(self) -> None:
        """Have the optimizer observe the finished waits."""
        if self._newest is not None and not self._goes_on:
            self._over.append(self._newest)
            self._newest = None
        over, self._over = self._over, []
        for wait in over:
            self._optimizer.observe_wait(
                wait.seconds, asked=wait.asked, arrived=wait.arrived, levels=wait.levels, running=wait.running
            )
