"""How long a request that finds the queue full had better wait, from how fast choices have been finishing."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

WINDOW_SECONDS: Final = 30.0
"""How far back finished choices count."""

SHORTEST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 60.0


class QueueWait:
    """Choices that this gateway has under way, and when the last ones finished.

    What is under way drains at the rate at which choices have finished lately, or since the gateway was idle if that
    is less long ago. With several gateways before a verify service each goes by its own part of both.
    """

    __slots__ = ("_busy_since", "_finished", "_under_way")

    def __init__(self) -> None:
        self._under_way = 0
        self._busy_since = 0.0
        self._finished: deque[float] = deque()

    def begin(self, choices: int) -> None:
        """Choices have been submitted."""
        if self._under_way == 0:
            self._busy_since = time.monotonic()
            self._finished.clear()
        self._under_way += choices

    def finish(self) -> None:
        """A choice has ended with an answer, which makes room for another one."""
        self._finished.append(time.monotonic())
        self._forget()

    def end(self, choices: int) -> None:
        """The request of these choices is over, whatever became of them."""
        self._under_way -= choices

    def seconds(self, refused: int) -> float:
        """Until what is under way, without the `refused` choices, has finished; between 1 s and 60 s.

        Where nothing has finished yet, as if one choice were just finishing; 1 s where nothing is under way.
        """
        self._forget()
        span = min(WINDOW_SECONDS, time.monotonic() - self._busy_since)
        ahead = self._under_way - refused
        return min(LONGEST_SECONDS, max(SHORTEST_SECONDS, ahead * span / max(1, len(self._finished))))

    def _forget(self) -> None:
        oldest = time.monotonic() - WINDOW_SECONDS
        while self._finished and self._finished[0] < oldest:
            self._finished.popleft()
