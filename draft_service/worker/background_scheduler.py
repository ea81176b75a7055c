"""Schedules the proposers' background work: shortest piece first, with aging against starvation.

Proposers that catch up with a text share one thread, and each reads the whole text in pieces. Shortest first lets the
quick ones draft early: under round-robin a draft model would be ready only when the slowest head is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter

from draft_service.proposers.base import Proposer

_log = logging.getLogger(__name__)

AGING_RATE = 1 / 8.0
"""Seconds of a piece's length that a second of waiting makes up for: the longest pieces get a ninth of the time at
least."""
PASS_SECONDS = 1e-3
"""A pass begins no piece after so long."""
_IDLE_SECONDS = 1e-4
"""A call that is shorter and leaves no work did none, and is not measured."""
_RECENT = 8.0
"""Pieces that the mean time of one is taken over, roughly."""


class _Task:
    """A proposer: mean seconds of a piece of its work, and when it was called last."""

    __slots__ = ("called_at", "proposer", "seconds")

    def __init__(self, proposer: Proposer) -> None:
        self.proposer = proposer
        self.seconds = 0.0
        self.called_at = 0.0

    def rank(self, now: float) -> float:
        """Return the priority; the lowest goes first."""
        return self.seconds - (now - self.called_at) * AGING_RATE

    def run(self, clock: Callable[[], float]) -> bool:
        """Do one piece of work. Return whether more remains."""
        begun = clock()
        more = False
        try:
            more = self.proposer.advance()
        except Exception:  # noqa: BLE001 (a third party's code; its sessions fail when they are drafted)
            _log.exception("proposer %s failed in the background", self.proposer.name)
        self.called_at = clock()
        taken = self.called_at - begun
        if more or taken > _IDLE_SECONDS:
            self.seconds += (taken - self.seconds) / (_RECENT if self.seconds else 1.0)
        return more

    def settle(self) -> None:
        """Wait for what its pieces left to a device."""
        try:
            self.proposer.settle()
        except Exception:  # noqa: BLE001 (a third party's code)
            _log.exception("proposer %s failed in the background", self.proposer.name)


class Background:
    """The background work of proposers. `clock`: seconds that only grow."""

    def __init__(self, proposers: Sequence[Proposer], clock: Callable[[], float] = perf_counter) -> None:
        self._tasks = [_Task(proposer) for proposer in proposers]
        self._clock = clock

    def settle(self) -> None:
        """Wait until devices have done what was queued."""
        for task in self._tasks:
            task.settle()

    def advance(self) -> bool:
        """Do one piece of work, or several short ones. Return whether there may be more."""
        begun = self._clock()
        more_work = False
        for place, task in enumerate(sorted(self._tasks, key=lambda task: task.rank(begun)), start=1):
            more_work |= task.run(self._clock)
            if self._clock() - begun > PASS_SECONDS:
                return more_work or place < len(self._tasks)
        return more_work
