"""Whose background work is next.

Proposers that catch up with a text share one thread, and each reads the whole of it, piece by piece. The shorter pieces
go first, so that whoever is done sooner drafts sooner: in turns a draft model would be ready when the slowest head is.
What waits grows in rank, so that nobody starves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter

from draft_service.proposers.base import Proposer

_log = logging.getLogger(__name__)

PATIENCE = 8.0
"""A second of waiting makes up for a piece that is longer by this part of a second: the longest ones get a ninth of the
time, or more."""
PASS_SECONDS = 1e-3
"""A pass that has taken so long begins no other piece."""
_IDLE_SECONDS = 1e-4
"""A call so short that leaves no work had none."""
_RECENT = 8.0
"""Pieces that the usual time of one is taken from, roughly."""


class _Task:
    """A proposer: seconds that a piece of its work takes as a rule, and when it was called last."""

    __slots__ = ("called_at", "proposer", "seconds")

    def __init__(self, proposer: Proposer) -> None:
        self.proposer = proposer
        self.seconds = 0.0
        self.called_at = 0.0

    def rank(self, now: float) -> float:
        """The lowest goes first."""
        return self.seconds - (now - self.called_at) / PATIENCE

    def take(self, clock: Callable[[], float]) -> bool:
        """Whether more work remains."""
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


class Background:
    """The background work of proposers. `clock`: seconds that only grow."""

    def __init__(self, proposers: Sequence[Proposer], clock: Callable[[], float] = perf_counter) -> None:
        self._turns = [_Task(proposer) for proposer in proposers]
        self._clock = clock

    def advance(self) -> bool:
        """One piece of work, or several that are short; whether there may be more."""
        begun = self._clock()
        more_work = False
        for place, turn in enumerate(sorted(self._turns, key=lambda turn: turn.rank(begun)), start=1):
            more_work |= turn.take(self._clock)
            if self._clock() - begun > PASS_SECONDS:
                return more_work or place < len(self._turns)
        return more_work
