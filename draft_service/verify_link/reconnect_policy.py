"""How a link that is refused, or ends, is tried again, and how often the log says why."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

LAST_REFUSAL_SECONDS = 10.0
"""Between attempts where verify, or what it serves, does not take what is offered: only another model changes that."""
FIRST_REMINDER_SECONDS, LAST_REMINDER_SECONDS = 60.0, 3600.0


@dataclass(slots=True)
class Backoff:
    """Waiting times that double from `first` to `last` seconds, each shortened at random by up to a half."""

    first: float = 0.1
    last: float = 0.5
    _next: float = 0.0

    def reset(self) -> None:
        self._next = 0.0

    def take(self) -> float:
        self._next = min(self.last, self._next * 2 or self.first)
        return self._next * random.uniform(0.5, 1.0)


@dataclass(slots=True)
class Attempts:
    """The failures in a row of one link: how long to wait after each, and what is logged of it.

    A reason is logged when it changes. That of a refusal, which somebody has to mend, is said again while it lasts, at
    intervals that double from a minute to an hour.
    """

    log: logging.Logger
    clock: Callable[[], float] = time.monotonic
    reason: str = ""
    """Why the last attempt failed; empty after one that succeeded."""
    _away: Backoff = field(default_factory=Backoff)
    _refused: Backoff = field(default_factory=lambda: Backoff(last=LAST_REFUSAL_SECONDS))
    _again_at: float = 0.0
    _interval: float = 0.0

    def succeeded(self) -> None:
        """The link stands."""
        self.reason = ""

    def steady(self) -> None:
        """The link stood for long: what ended it is no sequel of earlier failures."""
        self._away.reset()
        self._refused.reset()

    def failed(self, what: str, reason: str, *, level: int, refused: bool, trace: bool = False) -> float:
        """Returns the seconds to wait. `what` is said before the reason; `refused`: it will be the same next time.

        With `trace` the exception that is handled is logged, too.
        """
        now = self.clock()
        if reason != self.reason:
            self.reason, self._interval = reason, FIRST_REMINDER_SECONDS
            self._again_at = now + self._interval
            self.log.log(level, "%s, trying again: %s", what, reason, exc_info=trace)
        elif refused and now >= self._again_at:
            self._interval = min(2 * self._interval, LAST_REMINDER_SECONDS)
            self._again_at = now + self._interval
            self.log.log(level, "%s, still trying: %s", what, reason)
        return self._refused.take() if refused else self.away()

    def away(self) -> float:
        """Returns the seconds to wait for a service that is not there, which is not worth a line of the log."""
        self._refused.reset()
        return self._away.take()
