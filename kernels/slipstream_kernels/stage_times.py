"""What the stages of a start take, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable


class StageTimes:
    """Seconds of each stage. A stage begins where the one before it has ended."""

    def __init__(self, begun: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`begun`: when the first stage began, by the clock; None: now."""
        self._clock = clock
        self._begun = self._ended = clock() if begun is None else begun
        self._seconds: dict[str, float] = {}

    def end(self, stage: str) -> None:
        """A stage ends; one that has ended before has gone on until now."""
        now = self._clock()
        self._seconds[stage] = self._seconds.get(stage, 0.0) + now - self._ended
        self._ended = now

    @property
    def total(self) -> float:
        """Seconds from the begin of the first stage to the end of the last."""
        return self._ended - self._begun

    def __str__(self) -> str:
        return ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in self._seconds.items())
