"""What steps wait for trees, from when they ask for them until the budget hears of it."""

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
    """One wait a step, which is not looked at while the device has nothing to do, but when the budget is told of it."""

    def __init__(self, budget: GoodputOptimizer) -> None:
        self._budget = budget
        self._begun = 0.0
        """When the newest wait began."""
        self._beside = 0.0
        """Seconds that an engine idles for the sake of trees, besides waiting for them."""
        self._newest: _Wait | None = None
        self._over: list[_Wait] = []
        """Those of steps before, of which the budget has not heard."""
        self._goes_on = False
        """Whether the newest wait is not over: the device has trees that the host does not know."""

    def begin(self) -> None:
        """A step is about to be launched, and may ask for trees. A wait that did not end was that of no step."""
        if self._newest is not None and not self._goes_on:
            self._over.append(self._newest)
        self._newest, self._goes_on = None, False
        self._begun = time.perf_counter()

    def end(self, *, asked: int, arrived: int, levels: int, running: int, unread: bool) -> float:
        """They have come, as far as they do; `unread` says that the host waits for them later. Returns the seconds."""
        seconds = time.perf_counter() - self._begun
        self._newest, self._goes_on = _Wait(seconds, asked, arrived, levels, running), unread
        return seconds

    def read(self) -> None:
        """The host knows all trees of the step."""
        if self._goes_on and self._newest is not None:
            self._newest = self._newest._replace(seconds=time.perf_counter() - self._begun)
        self._goes_on = False

    def idled(self, seconds: float) -> None:
        """The engine had nothing to do for so long before a step that asked for trees was launched, or any other.

        Where the step waited for trees all of that is their price: without them it would have been launched before.
        """
        seconds = min(seconds, _MOST_IDLE * self._budget.costs.seconds(1))
        if self._newest is not None and seconds > self._newest.seconds:
            self._beside += _FAST * (seconds - self._newest.seconds - self._beside)
            self._newest = self._newest._replace(seconds=seconds)

    @property
    def price(self) -> float:
        """Seconds that the trees of the newest step have cost before its pass, with what an engine idles for them."""
        return self._beside + (0.0 if self._newest is None else self._newest.seconds)

    def tell(self) -> None:
        """Have the budget take in the waits that are over."""
        if self._newest is not None and not self._goes_on:
            self._over.append(self._newest)
            self._newest = None
        over, self._over = self._over, []
        for wait in over:
            self._budget.observe_wait(
                wait.seconds, asked=wait.asked, arrived=wait.arrived, levels=wait.levels, running=wait.running
            )
