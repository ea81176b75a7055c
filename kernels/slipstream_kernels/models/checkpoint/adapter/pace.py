"""Rests of a thread that reads or writes much beside others that are in a hurry."""

from __future__ import annotations

import time

BETWEEN = 1 << 18
"""Bytes from one rest to the next: a fraction of a millisecond's work."""
REST_SECONDS = 1e-3


class Pace:
    """Rests after each `BETWEEN` bytes.

    Each of a thread's calls into a library may have another thread wait for the interpreter; while this one rests, none
    does.
    """

    def __init__(self) -> None:
        self._since = 0

    def add(self, count: int) -> None:
        """Take in that so many more bytes were read or written."""
        self._since += count
        if self._since >= BETWEEN:
            self._since = 0
            time.sleep(REST_SECONDS)
