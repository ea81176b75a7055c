"""How long a launch may wait for trees that are made while the step before it runs."""

from __future__ import annotations

from collections import deque
from statistics import median

_RECENT = 16
_MARGIN = 1.5
_SEEN = 1e-4
"""Seconds from the end of a step until its results are seen, at most."""
_ASIDE = 2e-4
"""Seconds of a launch that are not the engine's, before any was measured whole."""


class LaunchDeadline:
    """Learns from steps without prompt rows, and from launches. Times are those of one clock, in seconds."""

    __slots__ = ("_launches", "_steps", "_whole")

    def __init__(self) -> None:
        self._steps: deque[float] = deque(maxlen=_RECENT)
        self._launches: deque[float] = deque(maxlen=_RECENT)
        self._whole: deque[float] = deque(maxlen=_RECENT)

    def observe_step(self, seconds: float) -> None:
        """A step took so long."""
        self._steps.append(seconds)

    def observe_launch(self, seconds: float) -> None:
        """The engine took so long to start one, for which no trees had to be there: older whole launches count less."""
        self._launches.append(seconds)
        if self._whole:
            self._whole.popleft()

    def observe_whole_launch(self, seconds: float) -> None:
        """So long it took from when trees had to be there, or were, until the step was launched with them."""
        self._whole.append(seconds)

    def latest_start(self, begun: float) -> float | None:
        """When to begin with a launch so that it is through before a step ends that began then; None: not known yet.

        By the quicker ones of the last steps: too early costs a tree that comes late, too late costs every request.
        """
        if not self._steps or not (self._whole or self._launches):
            return None
        quick = sorted(self._steps)[len(self._steps) // 4]
        launch = median(self._whole) if self._whole else median(self._launches) + _ASIDE
        return begun + quick - _MARGIN * launch - _SEEN
