"""When a step is launched ahead of a decision: so late that the engine just does not idle.

Requests that come until then are in it.

    engine  |---------- step n ----------|---------- step n + 1 ----------|
    host    n - 1 decided  ..left..  launch n + 1
                                     |--lead--|
"""

from __future__ import annotations

import time
from collections import deque

_ROUNDS = 4
"""Times of steps, of which the quickest is counted on."""
_LAUNCHES = 8
"""Of which the longest is counted on."""
_MARGIN = 2.0
"""Times that longest launch, for what is done before it."""
_SPARE = 5e-4
"""Seconds that the host may wake too late."""


class LaunchClock:
    """Learns from `launched` and `decided`; times are those of time.perf_counter(), in seconds."""

    def __init__(self) -> None:
        self._rounds: deque[float] = deque(maxlen=_ROUNDS)
        self._launches: deque[float] = deque(maxlen=_LAUNCHES)
        self._begun_at = 0.0
        """When the oldest step under way began: with its launch, or with the end of the one before it."""

    def launched(self, begun_at: float, seconds: float, *, alone: bool) -> None:
        """A launch has taken the host so long; `alone` where no other step was under way."""
        self._launches.append(seconds)
        if alone:
            self._begun_at = begun_at

    def decided(self, now: float, *, late: bool) -> None:
        """A step is decided; the one behind it runs already, or is about to.

        late: it was over before the host asked. How long it took is unknown then, and nothing waits before rounds are
        known again: a wait that was too long would be counted on in the next round.
        """
        if late:
            self._rounds.clear()
        else:
            self._rounds.append(now - self._begun_at)
        self._begun_at = now

    @property
    def left(self) -> float:
        """Seconds until the next step is to be launched; not positive where it is due."""
        if len(self._rounds) < _ROUNDS or not self._launches:
            return 0.0
        lead = _MARGIN * max(self._launches) + _SPARE
        return self._begun_at + min(self._rounds) - lead - time.perf_counter()
