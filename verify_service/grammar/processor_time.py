"""What a grammar may cost the loop's thread, beyond what questions about tokens are expected to take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class ProcessorTime:
    """Seconds of a processor that the asking thread has; while others have it, no time passes.

    `each` is what a question about one token may take for nothing: what is quicker makes up for what was slower.
    `excess` is what all questions may take beyond that.
    """

    def __init__(self, *, each: float, excess: float) -> None:
        self._each = each
        self._left = self._excess = excess

    @property
    def is_spent(self) -> bool:
        return self._left <= 0

    def ask(self, question: Callable[[], T], tokens: int = 1) -> T:
        """Return the answer to a question about so many tokens, which is always asked to its end."""
        begun = time.thread_time()
        try:
            return question()
        finally:
            took = time.thread_time() - begun
            self._left = min(self._excess, self._left + tokens * self._each - took)
