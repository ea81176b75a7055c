"""What a step waits for trees, by the requests in it, those that ask for trees, and the deepest tree's levels."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from slipstream_kernels.draft_protocol.records import RoundCost
from verify_service.core.load_size import load_size
from verify_service.core.step_time_model import StepTimeModel
from verify_service.speculation.round_table import AHEAD, RoundTable

_RECENT = 13
"""Waits of which the middle one counts: half a dozen in a row may be a process that is held up."""
_STALE, KEPT_WAITS = 64, 2
"""Steps without a wait of a size after which no more than its latest so many count beside new ones."""
_CHANGED = 2.0
"""Times what was known of a size, or less by so many times, that say that the drafter is another now."""
_FIRST_USES, _CAPTURE, _CAPTURE_BEHIND = 2, 10.0, 2.0
"""Of a size and levels, for which a drafter may capture a graph: these do not count from so many times the guess on.

Behind a pass, which has more sizes and a graph of each, from fewer: the first one would be the last for long.
"""
_GUESS = 0.06
"""Passes of one request that a level takes by a drafter that does not say: of a head of one layer."""

_BEGINNINGS = 8
"""Waits in a row, of drafters that draft behind passes, for trees that the host had to ask for: rounds begin so.

Drafting begins anew after every pause, of more than as many steps. To go on costs a fraction of that, so it is no price
of going on.
"""

Size = tuple[int, int]
"""The load of the step (`load_size`), and of those that asked."""


class _Expected(NamedTuple):
    """Seconds of a round by its drafter's word or a guess, and those that an excess of 1 adds."""

    seconds: float
    unit: float

    def excess(self, waited: float) -> float:
        """Of a wait: units beyond the round, or, below 0, the part of the round that was not waited for."""
        return (waited - self.seconds) / (self.unit if waited > self.seconds else self.seconds)

    def wait(self, excess: float) -> float:
        """Of a step whose wait has that excess, in seconds."""
        return self.seconds + excess * (self.unit if excess > 0.0 else self.seconds)


@dataclass(slots=True)
class _Waits:
    """The excesses of the latest waits of a size, newest last."""

    excesses: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    seen_at: int = 0
    before: float | None = None
    """What was known of the size before it was seen again; None where that is settled."""

    def observe(self, expected: _Expected, seconds: float, now: int) -> bool:
        """Take in a wait; return whether those of other sizes are out of date."""
        if now - self.seen_at > _STALE and self.excesses:
            self.before = median(self.excesses)
            self.excesses = deque(list(self.excesses)[-KEPT_WAITS:], _RECENT)
        self.seen_at = now
        self.excesses.append(expected.excess(seconds))
        if self.before is None:
            return False
        before, typical = expected.wait(self.before), expected.wait(median(self.excesses))
        changed = not before / _CHANGED <= typical <= before * _CHANGED
        if changed or len(self.excesses) > 2 * KEPT_WAITS:
            self.before = None
        return changed


class DraftTimeModel:
    """Seconds of a wait for trees: those of a round by its drafter's word, and what steps wait beyond or below it.

    That is measured in steps of a size, and for others known from the nearest. What steps wait beyond the round is the
    host's, whatever is drafted, and grows with the number of requests as a pass of the target does. A drafter that does
    not say is guessed to take so many times longer for more requests; as waits are many times the guess, or a part of
    it, so they are taken to be at other sizes and depths.
    """

    def __init__(self, step_time: StepTimeModel) -> None:
        guessed = [RoundCost(1, 1, (1 + AHEAD) * _GUESS * step_time.seconds(1))]
        self._guess = RoundTable(guessed, step_time)
        self._step_time = step_time
        self._tables: dict[str, RoundTable] = {}
        """By proposer, of those whose drafters say what their rounds take."""
        self.proposers: Collection[str] = ()
        """Of the requests that ask for trees."""
        self._waits: dict[bool, dict[Size, _Waits]] = {True: {}, False: {}}
        """For drafters that say what rounds take, and for others: the excess of one means nothing for the other."""
        self._uses: dict[tuple[Size, int], int] = {}
        """Waits so far, by size and by the levels of the deepest tree."""
        self._now = self._waited_at = 0
        self._begin = 0
        """Waits that may still be a beginning; 0 where nothing drafts behind passes."""
        self._drafts_behind = False

    def learn_costs(self, proposer: str, costs: Sequence[RoundCost]) -> None:
        """Take in what rounds of a proposer take by its drafter's word; () where it does not say.

        Another word than before is another drafter's, of which nothing was measured yet.
        """
        known = self._tables.get(proposer)
        if tuple(costs) == (() if known is None else known.costs):
            return
        if known is not None:
            self._waits[True].clear()
            del self._tables[proposer]
        if costs:
            self._tables[proposer] = RoundTable(costs, self._step_time)

    @property
    def knows_costs(self) -> bool:
        """Whether drafters say what their rounds take."""
        return bool(self._tables)

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
        for waits in self._waits.values():
            waits.clear()
        self._begin = _BEGINNINGS if self._drafts_behind else 0

    def seconds(self, asked: int, running: int, levels: int) -> float:
        """Of the wait of a step of `running` requests, `asked` of which ask for trees, the deepest so many levels."""
        return self.waits(asked, running, (levels,))[0]

    def waits(self, asked: int, running: int, levels: Sequence[int]) -> list[float]:
        """As `seconds`, of waits for trees of each of these levels."""
        told, expected = self._expected(asked, running, levels)
        waits = self._waits[told]
        if not waits:
            return [each.seconds for each in expected]
        excess = median(waits[_nearest(_size(asked, running), waits)].excesses)
        return [each.wait(excess) for each in expected]

    def least_waits(self, asked: int, running: int, levels: Sequence[int]) -> list[float] | None:
        """As `waits`, but no longer than rounds are by their drafters' word; None before waits of such are measured.

        Neither is trusted alone: a drafter may have measured itself on a busy machine, and waits may have been of one.
        """
        told, expected = self._expected(asked, running, levels)
        if not (told and self._waits[told]):
            return None
        waits = self.waits(asked, running, levels)
        return [min(each.seconds, wait) for each, wait in zip(expected, waits, strict=True)]

    def _expected(self, asked: int, running: int, levels: Sequence[int]) -> tuple[bool, list[_Expected]]:
        """Whether all drafters say what rounds take, and the round of the slowest for each of these levels."""
        tables = [self._tables.get(name) for name in self.proposers or self._tables]
        telling = [table for table in tables if table is not None]
        said = [max((table.seconds(asked, each) for table in telling), default=0.0) for each in levels]
        if telling and len(telling) == len(tables):
            unit = self._step_time.growth(running)
            return True, [_Expected(seconds, unit) for seconds in said]
        guessed = [max(self._guess.seconds(running, each), seconds) for each, seconds in zip(levels, said, strict=True)]
        return False, [_Expected(seconds, seconds) for seconds in guessed]

    def observe(
        self, seconds: float, *, asked: int, running: int, levels: int, behind: bool = False, came: bool = True
    ) -> None:
        """Take in a wait, `behind` a pass for trees that only the device knew at the launch.

        Of the latest the median counts: a graph that is captured is not the price. Where no tree `came` of a drafter
        that says what its rounds take, the wait was given up: rounds take no less than was known for that.
        """
        pause, self._waited_at = self._now - self._waited_at, self._now
        if behind or (self._drafts_behind and pause > _BEGINNINGS):
            self._begin = _BEGINNINGS
        if self._begin and not behind:
            self._begin -= 1
            return
        size = _size(asked, running)
        uses = self._uses[size, levels] = self._uses.get((size, levels), 0) + 1
        guess = self.seconds(asked, running, levels)
        if uses <= _FIRST_USES and seconds > (_CAPTURE_BEHIND if behind else _CAPTURE) * guess:
            return
        told, (expected,) = self._expected(asked, running, (levels,))
        if told and not came and seconds < guess:
            return
        waits = self._waits[told].setdefault(size, _Waits(seen_at=self._now))
        if waits.observe(expected, seconds, self._now):
            self._waits[told] = {size: waits}


def _size(asked: int, running: int) -> Size:
    return load_size(running), load_size(asked)


def _nearest(size: Size, known: Iterable[Size]) -> Size:
    """The number of requests in the step matters more: what the host does for a step grows with it."""
    return min(known, key=lambda each: 2 * abs(each[0] - size[0]) + abs(each[1] - size[1]))
