"""What a grammar may cost the loop's thread, beyond what questions about tokens are expected to take."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")
_KNOWN_SECONDS = 0.01
"""For so long a thread's processor time is not asked for again, which takes longer than most questions."""


class _Known(threading.local):
    """Processor seconds of a thread at the last time that they were asked for, and when that was."""

    spent = 0.0
    at = -math.inf

    def ask(self, now: float) -> float:
        """Return what the thread has spent since the last time."""
        before, self.spent, self.at = self.spent, time.thread_time(), now
        return self.spent - before


_known = _Known()


class ProcessorTime:
    """Seconds of a processor that the asking thread has; while others have it, no time passes.

    What is quick by the clock is quick. Of what takes longer no more counts than the thread has had of a processor,
    within it and up to `_KNOWN_SECONDS` before it.

    `each` is what a question about one token may take for nothing: what is quicker makes up for what was slower.
    `excess` is what all questions may take beyond that.
    """

    def __init__(self, *, each: float, excess: float) -> None:
        self._each = each
        self._left = self._excess = excess
        self.is_spent = False

    def ask(self, question: Callable[[A], T], whom: A, tokens: int = 1) -> T:
        """Return the answer to a question about so many tokens, which is always asked to its end."""
        begun = time.perf_counter()
        if begun - _known.at > _KNOWN_SECONDS:
            _known.ask(begun)
        try:
            return question(whom)
        finally:
            ended = time.perf_counter()
            took, free = ended - begun, tokens * self._each
            if took > free:
                took = min(took, _known.ask(ended))
            self._left = min(self._excess, self._left + free - took)
            self.is_spent = self._left <= 0
