"""Circuit breaker of one draft service: how long the verify loop keeps waiting for it."""

from __future__ import annotations

from dataclasses import dataclass

MAX_TIMEOUTS = 3
FIRST_BACKOFF = 0.25
LAST_BACKOFF = 5.0
SILENCE = 1.0
PROBE_FACTOR = 1.25
"""A wait longer than the longest timed-out one by this factor is worth a probe before the back-off ends."""


@dataclass(slots=True)
class CircuitBreaker:
    """Circuit breaker per draft service: opens after `MAX_TIMEOUTS` timeouts in a row, then probes once a back-off.

    - Closed: a step waits, unless the drafter has sent nothing since the last timed-out wait. Such a drafter costs one
      deadline; it is still asked for trees, for as many steps and as long as `MAX_TIMEOUTS` waits take.
    - Open: no step waits until the back-off ends, which doubles from `FIRST_BACKOFF` to `LAST_BACKOFF` seconds.
    - Half-open: one step waits. Its success closes the breaker, its timeout starts the next back-off.
    - A drafter that sends nothing at all is unresponsive and not probed.
    - A message after `SILENCE` seconds or more without one closes the breaker.
    - A wait longer than `longest_timeout` by `PROBE_FACTOR` is a probe at once.

    Times are time.monotonic() in seconds.
    """

    timeouts: int = 0
    """In a row."""
    backoff: float = 0.0
    probe_at: float = 0.0
    last_timeout_at: float = 0.0
    last_message_at: float = 0.0
    longest_timeout: float = 0.0
    """Seconds of the longest wait that timed out since the last success."""
    last_wait_timeout_at: float = 0.0
    """As `last_timeout_at`, without steps that had no trees and did not wait."""
    skipped_steps: int = 0
    """Steps without its trees since its last message."""

    def allows_wait(self, now: float, seconds: float = 0.0) -> bool:
        """Whether a step may wait up to `seconds` for this draft service now."""
        if self.timeouts < MAX_TIMEOUTS:
            return not self._silent_since_timeout
        due = now >= self.probe_at or seconds > PROBE_FACTOR * self.longest_timeout > 0.0
        return due and self.last_message_at >= self.last_timeout_at

    def allows_requests(self, now: float) -> bool:
        """Whether the drafter is asked for trees now, waited for or not."""
        if self.timeouts >= MAX_TIMEOUTS or not self._silent_since_timeout:
            return self.allows_wait(now)
        grace = (MAX_TIMEOUTS - self.timeouts) * self.longest_timeout
        return self.skipped_steps < MAX_TIMEOUTS or now < self.last_wait_timeout_at + grace

    def is_unresponsive(self, now: float) -> bool:
        """Whether the drafter has sent nothing since a timeout that was `SILENCE` seconds ago or more."""
        timed_out = max(self.timeouts, self.skipped_steps) >= MAX_TIMEOUTS
        return timed_out and self.last_message_at < self.last_timeout_at <= now - SILENCE

    def is_silent(self, now: float) -> bool:
        """Whether the drafter has sent nothing for `SILENCE` seconds or more, asked for anything or not."""
        return now - self.last_message_at >= SILENCE

    @property
    def _silent_since_timeout(self) -> bool:
        return self.timeouts > 0 and self.last_message_at < self.last_wait_timeout_at

    def on_success(self) -> None:
        """All trees that were wanted were there in time."""
        self.timeouts = self.skipped_steps = 0
        self.backoff = self.longest_timeout = 0.0

    def on_message(self, now: float) -> None:
        """A message has come, whatever its content."""
        if now - self.last_message_at >= SILENCE:
            self.on_success()
        self.last_message_at = now
        self.skipped_steps = 0

    def on_timeout(self, now: float, seconds: float = 0.0) -> None:
        """A wait of so many seconds ended at its deadline; with 0 a step had none of its trees and did not wait."""
        self.timeouts += 1
        self.skipped_steps += 1
        if seconds > 0.0:
            self.last_wait_timeout_at = now
        self.longest_timeout = max(self.longest_timeout, seconds)
        self.last_timeout_at = now
        if self.timeouts >= MAX_TIMEOUTS:
            self.backoff = min(max(2 * self.backoff, FIRST_BACKOFF), LAST_BACKOFF)
            self.probe_at = now + self.backoff

    def on_skip(self) -> None:
        """A step went on without its trees and did not wait for them."""
        self.skipped_steps += 1
