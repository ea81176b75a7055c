"""Whether a service still answers: one that hangs with an open port keeps its clients waiting."""

from __future__ import annotations

import time

from launcher.services.process import ServiceProcess
from launcher.services.readiness import HealthConnection

PULSE_SECONDS = 5.0
"""Between two looks, and the longest wait for an answer."""
LEAST_MISSES = 3
"""Looks in a row without an answer, so that a launcher that was stopped itself blames nobody."""


class LivenessProbe:
    """Of one process, from its start on."""

    __slots__ = ("_answered", "_connection", "_misses", "_served", "_silent_since", "process")

    def __init__(self, process: ServiceProcess) -> None:
        self.process = process
        self._connection = HealthConnection(process.command.address, process.command.tls)
        self._answered = False
        self._served = False
        self._misses = 0
        self._silent_since = time.monotonic()

    def lost(self, seconds: float, start_seconds: float) -> bool:
        """Look, for a quarter of `seconds` at most; whether it has not answered for so long, or longer while it starts.

        A start ends when the process first reports that it serves. While it loads and compiles it may be silent for
        `start_seconds` more, also after it has answered that it does not serve yet.
        """
        asked = time.monotonic()
        if not self.process.running:
            return False
        serves = self._connection.serves(min(PULSE_SECONDS, seconds / 4))
        if serves is not None:
            self._answered, self._misses = True, 0
            self._served = self._served or serves
            return False
        if self._answered and not self._misses:
            self._silent_since = asked
        self._misses += 1
        limit = seconds if self._served else seconds + start_seconds
        return self._misses >= LEAST_MISSES and time.monotonic() - self._silent_since >= limit

    def close(self) -> None:
        """Look no more."""
        self._connection.close()
