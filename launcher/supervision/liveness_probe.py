"""Liveness probes: find services that hang with an open port, whose clients would wait forever."""

from __future__ import annotations

import time

from launcher.services.process import ServiceProcess
from launcher.services.readiness import HealthConnection

PROBE_SECONDS = 5.0
"""Seconds between two probes, and the longest wait for an answer."""
MIN_FAILURES = 3
"""Probes in a row without an answer before a service counts as failed: the launcher may have been stopped itself."""


class LivenessProbe:
    """Probes one process from its start on."""

    __slots__ = ("_answered", "_connection", "_failures", "_served", "_silent_since", "process")

    def __init__(self, process: ServiceProcess) -> None:
        self.process = process
        self._connection = HealthConnection(process.command.address, process.command.tls)
        self._answered = False
        self._served = False
        self._failures = 0
        self._silent_since = time.monotonic()

    def failed(self, seconds: float, start_seconds: float) -> bool:
        """Probe once, for a quarter of `seconds` at most. Return whether the process has been silent for `seconds`.

        Until the process first reports that it serves, it loads and compiles, and may be silent for `start_seconds`
        more, also after it has answered that it does not serve yet.
        """
        asked = time.monotonic()
        if not self.process.running:
            return False
        serves = self._connection.serves(min(PROBE_SECONDS, seconds / 4))
        if serves is not None:
            self._answered, self._failures = True, 0
            self._served = self._served or serves
            return False
        if self._answered and not self._failures:
            self._silent_since = asked
        self._failures += 1
        limit = seconds if self._served else seconds + start_seconds
        return self._failures >= MIN_FAILURES and time.monotonic() - self._silent_since >= limit

    def close(self) -> None:
        """Close the connection; the last call."""
        self._connection.close()
