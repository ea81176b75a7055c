"""How long a proposer takes from being asked for a tree until the tree is there, in time or too late."""

from __future__ import annotations

from collections import deque

_IN_TIME = 8
_LATE = 16
_STATES = 128
"""States of a request for which an answer is still looked for: as many as plain steps pass while a tree is made."""


class AnswerTimes:
    """The latest answers of one proposer of one attachment."""

    __slots__ = ("_in_time", "_late")

    def __init__(self) -> None:
        self._in_time: deque[float] = deque(maxlen=_IN_TIME)
        self._late: deque[float] = deque(maxlen=_LATE)

    def add(self, seconds: float, *, late: bool) -> None:
        """A tree has come so long after it was asked for; `late`: when its step had begun."""
        if not late:
            self._in_time.append(seconds)
            return
        self._late.append(seconds)
        if self._in_time:
            self._in_time.popleft()

    @property
    def usual(self) -> float | None:
        """Seconds within which trees come if they are waited for; None before any has come.

        That is what the slowest of those that came in time took. Where all are late it is what the quickest of them
        took: while it is not waited for, plain steps take the processor from the drafter.
        """
        if self._in_time:
            return max(self._in_time)
        return min(self._late) if self._late else None


class AskTimes:
    """The states of one request for which trees were asked, and when. Times are those of one clock."""

    __slots__ = ("_at",)

    def __init__(self) -> None:
        self._at: deque[tuple[int, float]] = deque(maxlen=_STATES)

    def note(self, base_length: int, now: float) -> None:
        """A tree is wanted after so many tokens."""
        self._at.append((base_length, now))

    def answered(self, base_length: int, now: float) -> float | None:
        """Seconds that the tree after so many tokens took; None if none was asked for, or another has come for it.

        Earlier states are not answered any more.
        """
        while self._at and self._at[0][0] <= base_length:
            length, asked_at = self._at.popleft()
            if length == base_length:
                return now - asked_at
        return None

    def clear(self) -> None:
        """Another request."""
        self._at.clear()
