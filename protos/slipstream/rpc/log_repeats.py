"""Warnings and errors that repeat, thinned out: a fault that meets every request must not fill the disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

MOST: Final = 20
"""Records of one line of code that pass within `SECONDS`."""
SECONDS: Final = 10.0


class RepeatFilter(logging.Filter):
    """Lets MOST warnings and errors of one line of code pass within SECONDS, and drops the others.

    The first that passes after some were dropped says how many. Records below a warning and critical ones all pass.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[tuple[str, int], tuple[float, int]] = {}
        """Since when a place is counted, and how many records it has had since, by logger and line."""

    def filter(self, record: logging.LogRecord) -> bool:
        """See logging."""
        if not logging.WARNING <= record.levelno < logging.CRITICAL:
            return True
        place, now = (record.name, record.lineno), self._clock()
        since, count = self._seen.get(place, (now, 0))
        if now - since >= SECONDS:
            if count > MOST:
                record.msg, record.args = f"{record.getMessage()} ({count - MOST} more like it were dropped)", None
            since, count = now, 0
        self._seen[place] = since, count + 1
        return count < MOST
