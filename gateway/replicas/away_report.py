"""What the log says of a verify service that is not there: its loss at once, a start that takes long after a while."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

_log = logging.getLogger(__name__)

STARTING_SECONDS: Final = 10.0
"""How long a service may take to start, at first or again, before a line is due."""


class AwayReport:
    """Told of each attempt at one service, and logs what is worth a line: each reason once, as long as it stays."""

    __slots__ = ("_address", "_clock", "_reported", "_since")

    def __init__(self, address: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = address
        self._clock = clock
        self._since = clock()
        self._reported = ""

    def lost(self, reason: str) -> None:
        """A session that was open has ended."""
        self._since, self._reported = self._clock(), reason
        _log.warning("verify service %s is away: %s", self._address, reason)

    def failed(self, reason: str, *, answered: bool) -> None:
        """No session could be opened; `answered`: as the service itself says, which is there and may be loading."""
        if self._clock() - self._since < STARTING_SECONDS:
            _log.debug("verify service %s is not there yet: %s", self._address, reason)
        elif reason != self._reported:
            self._reported = reason
            seconds = self._clock() - self._since
            level, state = (logging.INFO, "is not ready") if answered else (logging.WARNING, "is away")
            _log.log(level, "verify service %s %s, for %.0f s now: %s", self._address, state, seconds, reason)
