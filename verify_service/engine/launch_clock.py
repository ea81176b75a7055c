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
"""From one decision to the next, of which the quickest is counted on."""
_LAUNCHES = 8
"""Of which the longest is counted on."""
_MARGIN = 2.0
"""Times that longest launch, for what is done before it."""
_SPARE = 5e-4
"""Seconds that the host may wake too late."""


class LaunchClock:
    """Learns from `decided` and `launched`; times are those of time.perf_counter(), in seconds."""

    def __init__(self) -> None:
        self._rounds: deque[float] = deque(maxlen=_ROUNDS)
        self._launches: deque[float] = deque(maxlen=_LAUNCHES)
        self._decided_at = 0.0

    def decided(self, now: float) -> None:
        """A step is decided; the one behind it runs already, or is about to."""
        self._rounds.append(now - self._decided_at)
        self._decided_at = now

    def launched(self, seconds: float) -> None:
        """A launch has taken the host so long."""
        self._launches.append(seconds)

    @property
    def left(self) -> float:
        """Seconds until the next step is to be launched; not positive where it is due."""
        if len(self._rounds) < _ROUNDS or not self._launches:
            return 0.0
        lead = _MARGIN * max(self._launches) + _SPARE
        return self._decided_at + min(self._rounds) - lead - time.perf_counter()
