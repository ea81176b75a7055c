"""What a step waits for trees, by the requests in it, those that ask for trees, and the deepest tree's levels."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from verify_service.core.step_time_model import StepTimeModel

_RECENT = 13
"""Waits of which the middle one counts: half a dozen in a row may be a process that is held up."""
_STALE, _KEPT = 64, 2
"""Steps without a wait of a size after which no more than its latest so many count beside new ones."""
_CHANGED = 2.0
"""Times what was known of a size, or less by so many times, that say that the drafter is another now."""
_FIRST_USES, _CAPTURE = 2, 10.0
"""Of a size and levels, for which a drafter may capture a graph: these do not count from so many times the guess on."""
_GUESS = 0.06
"""Passes of one request that a level is waited for, before any wait was measured: of a head of one layer."""
_AHEAD = 2
"""Levels' worth of time that a drafter takes besides those it drafts, with the way there and back."""

_BEGINNINGS, _PAUSE = 8, 8
"""Waits in a row, of drafters that draft behind passes, for trees that the host had to ask for: rounds begin so.

Drafting begins anew after every pause, of more than so many steps. To go on costs a fraction of that, so it is no price
of going on.
"""

Size = tuple[int, int]
"""By how many bits the number of requests in the step has, and of those that asked."""


@dataclass(slots=True)
class _Waits:
    """The latest waits of a size, in seconds a level of one request, newest last."""

    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    seen_at: int = 0
    before: float = 0.0
    """What the size was known to take before it was seen again; 0 where that is settled."""

    def observe(self, seconds: float, now: int) -> bool:
        """Take in a wait; return whether those of other sizes are out of date."""
        if now - self.seen_at > _STALE and self.seconds:
            self.before = median(self.seconds)
            self.seconds = deque(list(self.seconds)[-_KEPT:], _RECENT)
        self.seen_at = now
        self.seconds.append(seconds)
        typical = median(self.seconds)
        changed = self.before > 0.0 and not self.before / _CHANGED <= typical <= self.before * _CHANGED
        if changed or len(self.seconds) > 2 * _KEPT:
            self.before = 0.0
        return changed


class DraftTimeModel:
    """Seconds of a wait for trees: as measured in steps of that size or the nearest, before any a guess.

    From one number of requests to another a draft takes as many times longer as a pass of the target does.
    """

    def __init__(self, step_time: StepTimeModel) -> None:
        self._step_time = step_time
        self._waits: dict[Size, _Waits] = {}
        self._uses: dict[tuple[Size, int], int] = {}
        """Waits so far, by size and by the levels of the deepest tree."""
        self._now = self._waited_at = 0
        self._begin = 0
        """Waits that may still be a beginning; 0 where nothing drafts behind passes."""
        self._drafts_behind = False

    def expect_behind(self, drafts: bool) -> None:
        """Say, before a wait, whether drafters draft behind passes, so that the first waits of all are beginnings."""
        if drafts and not self._drafts_behind:
            self._begin = _BEGINNINGS
        self._drafts_behind = drafts

    def count_step(self) -> None:
        """One more step is decided on, with trees or without."""
        self._now += 1

    def forget(self) -> None:
        """Of what was measured."""
        self._waits.clear()
        self._begin = _BEGINNINGS if self._drafts_behind else 0

    def seconds(self, asked: int, running: int, levels: int) -> float:
        """Of the wait of a step of `running` requests, `asked` of which ask for trees, the deepest so many levels."""
        return self.per_level(asked, running) * (_AHEAD + levels)

    def per_level(self, asked: int, running: int) -> float:
        """Seconds that one more level is waited for."""
        growth = self._step_time.growth(running)
        if not self._waits:
            return _GUESS * growth * self._step_time.seconds(1)
        size = _size(asked, running)
        return growth * median(self._waits[_nearest(size, self._waits)].seconds)

    def observe(self, seconds: float, *, asked: int, running: int, levels: int, behind: bool = False) -> None:
        """Take in a wait, `behind` a pass for trees that only the device knew at the launch.

        Of the latest the median counts: a graph that is captured is not the price.
        """
        pause, self._waited_at = self._now - self._waited_at, self._now
        if behind or (self._drafts_behind and pause > _PAUSE):
            self._begin = _BEGINNINGS
        if self._begin and not behind:
            self._begin -= 1
            return
        size = _size(asked, running)
        uses = self._uses[size, levels] = self._uses.get((size, levels), 0) + 1
        if uses <= _FIRST_USES and seconds > _CAPTURE * self.seconds(asked, running, levels):
            return
        waits = self._waits.setdefault(size, _Waits(seen_at=self._now))
        if waits.observe(seconds / ((_AHEAD + levels) * self._step_time.growth(running)), self._now):
            self._waits = {size: waits}


def _size(asked: int, running: int) -> Size:
    return running.bit_length(), asked.bit_length()


def _nearest(size: Size, known: Iterable[Size]) -> Size:
    """The number of requests in the step matters more: what the host does for a step grows with it."""
    return min(known, key=lambda each: 2 * abs(each[0] - size[0]) + abs(each[1] - size[1]))
