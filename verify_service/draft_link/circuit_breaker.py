"""How long the verify loop keeps waiting for one draft service."""

from __future__ import annotations

from dataclasses import dataclass

MAX_MISSES = 3
FIRST_BACKOFF = 0.25
LAST_BACKOFF = 5.0
SILENCE = 1.0
MORE_TIME = 1.25
"""How much more time than it missed makes another trial worth while."""


@dataclass(slots=True)
class CircuitBreaker:
    """After `MAX_MISSES` waits in a row that ended without the trees, waiting is suspended, then probed once.

    One that has said nothing since a wait for it was in vain is not waited for before it is heard: whatever became of
    it, it costs one deadline. It is still asked for trees, for as many steps and as long as `MAX_MISSES` waits are.

    The pause doubles from `FIRST_BACKOFF` to `LAST_BACKOFF` seconds while probes fail, so that a drafter too slow
    costs plain decoding at most one deadline a pause. One that says nothing at all hangs and is not probed. Once it is
    heard again after `SILENCE` seconds or more, it is waited for as at first. One that is offered `MORE_TIME` as long
    as it has missed is probed at once. Times are time.monotonic() in seconds.
    """

    misses: int = 0
    backoff: float = 0.0
    resume_at: float = 0.0
    missed_at: float = 0.0
    heard_at: float = 0.0
    missed: float = 0.0
    """seconds of the longest wait that was in vain"""
    waited_at: float = 0.0
    """when that which was in vain last ended, of waits and not of steps that had no trees without one"""
    ignored: int = 0
    """steps that went on without its trees since it was last heard"""

    def waits(self, now: float, seconds: float = 0.0) -> bool:
        """Whether a step may wait for this draft service now, and for so long."""
        if self.misses < MAX_MISSES:
            return not self._silent
        due = now >= self.resume_at or seconds > MORE_TIME * self.missed > 0.0
        return due and self.heard_at >= self.missed_at

    def drafts(self, now: float) -> bool:
        """Whether it is asked for trees now, waited for or not."""
        if self.misses >= MAX_MISSES or not self._silent:
            return self.waits(now)
        return self.ignored < MAX_MISSES or now < self.waited_at + (MAX_MISSES - self.misses) * self.missed

    def hangs(self, now: float) -> bool:
        """Whether it has said nothing for `SILENCE` seconds or more since a wait for it was in vain."""
        in_vain = max(self.misses, self.ignored) >= MAX_MISSES
        return in_vain and self.heard_at < self.missed_at <= now - SILENCE

    def unheard(self, now: float) -> bool:
        """Whether it has said nothing for `SILENCE` seconds or more, asked for anything or not."""
        return now - self.heard_at >= SILENCE

    @property
    def _silent(self) -> bool:
        return self.misses > 0 and self.heard_at < self.waited_at

    def hit(self) -> None:
        """All trees that were wanted were there in time."""
        self.misses = self.ignored = 0
        self.backoff = self.missed = 0.0

    def heard(self, now: float) -> None:
        """Something has come, whatever it was."""
        if now - self.heard_at >= SILENCE:
            self.hit()
        self.heard_at = now
        self.ignored = 0

    def miss(self, now: float, seconds: float = 0.0) -> None:
        """A wait of so many seconds ended at its deadline, or for 0 a step had none of its trees."""
        self.misses += 1
        self.ignored += 1
        if seconds > 0.0:
            self.waited_at = now
        self.missed = max(self.missed, seconds)
        self.missed_at = now
        if self.misses >= MAX_MISSES:
            self.backoff = min(max(2 * self.backoff, FIRST_BACKOFF), LAST_BACKOFF)
            self.resume_at = now + self.backoff

    def skip(self) -> None:
        """A step went on without its trees, for which it did not wait."""
        self.ignored += 1
