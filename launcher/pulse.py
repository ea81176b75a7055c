"""Whether a service still answers: one that hangs with an open port keeps its clients waiting."""

from __future__ import annotations

import time

from launcher.process import ServiceProcess
from launcher.readiness import answers

PULSE_SECONDS = 5.0
"""Between two looks, and the longest wait for an answer."""
LEAST_MISSES = 3
"""Looks in a row without an answer, so that a launcher that was stopped itself blames nobody."""


class Pulse:
    """Of one process. What has never answered starts, and may take its time."""

    __slots__ = ("_alive", "_misses", "_silent_since", "process")

    def __init__(self, process: ServiceProcess, *, alive: bool = False) -> None:
        """`alive`: it is known to have answered."""
        self.process = process
        self._alive = alive
        self._misses = 0
        self._silent_since = 0.0

    def lost(self, seconds: float) -> bool:
        """Look, for a quarter of `seconds` or a little less at most; whether it has not answered for so long."""
        asked = time.monotonic()
        if not self.process.running:
            return False
        if answers(self.process.command.address, min(PULSE_SECONDS, seconds / 4)):
            self._alive, self._misses = True, 0
        elif self._alive:
            self._silent_since = self._silent_since if self._misses else asked
            self._misses += 1
        return self._misses >= LEAST_MISSES and time.monotonic() - self._silent_since >= seconds
