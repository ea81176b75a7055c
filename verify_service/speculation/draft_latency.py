"""Seconds that steps wait for trees."""

from __future__ import annotations

import time
from typing import NamedTuple

from verify_service.core.step_time_model import FAST
from verify_service.speculation.goodput import GoodputOptimizer

_MOST_IDLE = 4.0
"""Passes of one row that one idle counts for, at most: what is compiled or captured then is not the price of trees."""


class _Wait(NamedTuple):
    """What trees have cost a step: `arrived` of `asked` came, the deepest with `levels` levels.

    `running` requests are in the step. behind: some of the trees only a device knew at the launch. catching_up: many of
    the requests were. of_probe: a probe asked for them.
    """

    seconds: float
    asked: int
    arrived: int
    levels: int
    running: int
    behind: bool
    catching_up: bool = False
    of_probe: bool = False


class DraftLatency:
    """Measures the wait of each step for its trees; `flush` hands finished waits to the optimizer.

    A wait is what the engine idled between two steps where it tells that (`settle`), else what the host waited. Trees
    that a device drafts come while the host does other work: how late it reads them is not their price.
    """

    def __init__(self, budget: GoodputOptimizer) -> None:
        self._optimizer = budget
        self._begun = 0.0
        """Start of the newest wait, time.perf_counter()."""
        self._beside = 0.0
        """Mean seconds that an engine idles for trees beyond the host's wait for them."""
        self._on_device: float | None = None
        """Mean seconds that an engine idles before steps with trees of a device; None before any."""
        self._newest: _Wait | None = None
        """Of a step that is not decided yet."""
        self._before: _Wait | None = None
        """Of the step in front of that one, where neither is decided."""
        self._ahead = False
        """Whether neither is."""
        self._over: list[_Wait] = []
        """Finished waits that the optimizer has not observed."""

    def begin(self, *, ahead: bool = False) -> None:
        """Begin the wait of the step about to be launched. A wait for trees of a device that goes on was of no step.

        ahead: it was that of the step under way, which is settled next.
        """
        self._ahead, self._before = ahead, self._newest if ahead else None
        if not ahead and self._newest is not None and not self._newest.behind:
            self._over.append(self._newest)
        self._newest = None
        self._begun = time.perf_counter()

    def end(
        self, *, asked: int, arrived: int, levels: int, running: int, device_trees: bool, catching_up: bool = False
    ) -> float:
        """End the host's part of the newest wait; with `device_trees` it ends as they are read. Return its seconds."""
        seconds = time.perf_counter() - self._begun
        of_probe = self._optimizer.gate.probing
        self._newest = _Wait(seconds, asked, arrived, levels, running, device_trees, catching_up, of_probe)
        return seconds

    def read(self) -> None:
        """End the host's part of a wait for trees of a device: the host has read them."""
        if self._newest is not None and self._newest.behind:
            self._newest = self._newest._replace(seconds=time.perf_counter() - self._begun)

    def settle(self, idle: float | None) -> bool:
        """End the wait of the oldest step, as that is decided; return whether there was any.

        idle: seconds that the engine idled before the step, if known.

        All of them count where the step waited for trees: without trees it had been launched earlier.
        """
        wait = self._before if self._ahead else self._newest
        if self._ahead:
            self._begun = time.perf_counter()  # what the host waits for trees behind a step begins with its end
            self._ahead, self._before = False, None
        else:
            self._newest = None
        if wait is None:
            return False
        if idle is not None:
            idle = min(idle, _MOST_IDLE * self._optimizer.step_time.seconds(1))
            if wait.behind:
                known = idle if self._on_device is None else self._on_device
                self._on_device = known + FAST * (idle - known)
                wait = wait._replace(seconds=idle)
            elif idle > wait.seconds:
                self._beside += FAST * (idle - wait.seconds - self._beside)
                wait = wait._replace(seconds=idle)
        self._over.append(wait)
        return True

    @property
    def seconds(self) -> float:
        """Draft latency that the newest step, not decided yet, is expected to have had before its pass."""
        if self._newest is None:
            return self._beside
        if self._newest.behind and self._on_device is not None:
            return self._on_device
        return self._beside + self._newest.seconds

    def flush(self) -> None:
        """Have the optimizer observe the finished waits."""
        over, self._over = self._over, []
        for wait in over:
            self._optimizer.observe_wait(**wait._asdict())
