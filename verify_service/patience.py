"""How long the verify loop keeps waiting for one draft service."""

from __future__ import annotations

from dataclasses import dataclass

MAX_MISSES = 3
FIRST_BACKOFF = 0.25
LAST_BACKOFF = 5.0
SILENCE = 1.0


@dataclass(slots=True)
class Patience:
    """After `MAX_MISSES` waits in a row that ended without the trees, waiting is suspended, then probed once.

    The pause doubles from `FIRST_BACKOFF` to `LAST_BACKOFF` seconds while probes fail, so that a drafter too slow
    costs plain decoding at most one deadline a pause. One that says nothing at all hangs and is not probed. Once it is
    heard again after `SILENCE` seconds or more, it is waited for as at first. Times are time.monotonic() in seconds.
    """

    misses: int = 0
    backoff: float = 0.0
    resume_at: float = 0.0
    missed_at: float = 0.0
    heard_at: float = 0.0

    def waits(self, now: float) -> bool:
        """Whether a step may wait for this draft service now."""
        return self.misses < MAX_MISSES or (now >= self.resume_at and self.heard_at >= self.missed_at)

    def hangs(self, now: float) -> bool:
        """Whether it has said nothing for `SILENCE` seconds or more since a wait for it was in vain."""
        return self.misses >= MAX_MISSES and self.heard_at < self.missed_at <= now - SILENCE

    def hit(self) -> None:
        """All trees that were wanted were there in time."""
        self.misses = 0
        self.backoff = 0.0

    def heard(self, now: float) -> None:
        """Something has come, whatever it was."""
        if now - self.heard_at >= SILENCE:
            self.hit()
        self.heard_at = now

    def miss(self, now: float) -> None:
        """A wait ended at its deadline."""
        self.misses += 1
        self.missed_at = now
        if self.misses >= MAX_MISSES:
            self.backoff = min(max(2 * self.backoff, FIRST_BACKOFF), LAST_BACKOFF)
            self.resume_at = now + self.backoff
