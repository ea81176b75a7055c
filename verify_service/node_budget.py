"""How many drafted rows a step is worth: expected tokens against measured time."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_LEVELS = 16
PROBE_EVERY = 512
PROBE_STEPS = 4
PROBE_LEVELS = 2
FORGET_EVERY = 16 * PROBE_EVERY
"""Plain steps after which waits are measured anew, those of more requests than probes ask too."""
WEIGH_EVERY = 8
"""Steps from one weighing to the next while nothing pays."""

_FAST, _SLOW = 0.1, 0.02
_RECENT = 9
"""Waits of which the middle one counts."""
_WORTH = 1.1
"""Times plain throughput that trees must promise: rows of many requests cost more than as many of a few trees."""
_LEAST_CHANCE = 0.02
"""Of levels that are considered."""


@dataclass(slots=True)
class Acceptance:
    """How often a level of a request's trees was matched once it was reached; old steps fade."""

    tried: float = 0.0
    matched: float = 0.0
    last: int = 0
    """Levels matched the last time."""

    def observe(self, tried: int, matched: int) -> None:
        self.last = matched
        self.tried += tried - _SLOW * self.tried
        self.matched += matched - _SLOW * self.matched

    def rate(self, prior: float, weight: float = 8.0) -> float:
        """Estimate that starts at `prior`, which counts as `weight` observations."""
        return min(0.98, (self.matched + weight * prior) / (self.tried + weight))


class RowCosts:
    """Seconds of a verify pass by its number of rows: a table measured at start-up, scaled by what passes take now."""

    def __init__(self, table: Sequence[tuple[int, float]]) -> None:
        """`table` has (rows, seconds) by rising rows; between them costs are interpolated, beyond them extended.

        A table of one entry says that all numbers of rows cost the same.
        """
        self._rows = [rows for rows, _ in table]
        self._seconds = [seconds for _, seconds in table]
        self._scale = 1.0
        self._from_none: Floats = np.empty(0)
        """`_in_table` of 0, 1, 2, ... rows, as far as was asked for."""

    def seconds(self, rows: float) -> float:
        if len(self._rows) == 1:
            return self._scale * self._seconds[0]
        at = min(max(1, bisect_left(self._rows, rows)), len(self._rows) - 1)
        low, high = self._rows[at - 1], self._rows[at]
        slope = (self._seconds[at] - self._seconds[at - 1]) / (high - low)
        return self._scale * max(self._seconds[at - 1] + slope * (rows - low), 1e-9)

    def each(self, rows: Ints | Floats) -> Floats:
        """`seconds` of several numbers of rows."""
        seconds: Floats = self._scale * self._in_table(rows)
        return seconds

    def up_from(self, rows: int, count: int) -> Floats:
        """`seconds` of `count` numbers of rows from `rows` on."""
        end = rows + count
        if end > len(self._from_none):
            self._from_none = self._in_table(np.arange(2 * end))
        seconds: Floats = self._scale * self._from_none[rows:end]
        return seconds

    def observe(self, rows: int, seconds: float) -> None:
        """Take in one pass."""
        expected = self.seconds(rows) / self._scale
        self._scale += _FAST * (min(max(seconds / expected, 0.1), 10.0) - self._scale)

    def _in_table(self, rows: Ints | Floats) -> Floats:
        """`each` by the table alone."""
        if len(self._rows) == 1:
            return np.full(len(rows), self._seconds[0])
        at = np.clip(np.searchsorted(self._rows, rows), 1, len(self._rows) - 1)
        low = np.take(self._rows, at - 1)
        least = np.take(self._seconds, at - 1)
        slope = (np.take(self._seconds, at) - least) / (np.take(self._rows, at) - low)
        seconds: Floats = np.maximum(least + slope * (rows - low), 1e-9)
        return seconds


@dataclass(frozen=True, slots=True)
class Bidder:
    """A request that wants a tree: its acceptance so far and the deepest path it may have."""

    acceptance: Acceptance
    max_levels: int


@dataclass(slots=True)
class _Weighing:
    """Who bid for levels beside how many rows, by what facts, and what each was granted."""

    bidders: Sequence[Bidder] = ()
    rows: int = 0
    facts: object = None
    granted: list[int] = field(default_factory=list)


class NodeBudget:
    """Chooses how deep each request's next tree may be, so that tokens per second are highest.

    Level i of a request is expected to yield rate^i tokens and to cost its nodes' share of a verify pass; asking
    for trees at all costs the wait for them, which grows with the deepest. Levels of all requests compete, best
    first. Where none is worth its cost the step is plain, and now and then a short probe looks whether that has
    changed: `PROBE_STEPS` of `PROBE_EVERY` steps.
    """

    def __init__(self, costs: RowCosts) -> None:
        self.costs = costs
        self._overall = Acceptance(tried=20.0, matched=14.0)
        self._presence = 1.0
        self._nodes_per_level = 1.0
        self._waits: dict[tuple[int, int], deque[float]] = {}
        """The latest waits in seconds a level of the deepest tree, over the load of the requests that asked.

        By how many bits the number of requests in the step has, and of those that asked: what the host does for each
        is not in their load on the device.
        """
        self._plain_steps = 0
        self._bids = _Weighing(), _Weighing()
        """What `levels` was asked last: of those that bid, and of all that would."""
        self.pays = True
        """Whether levels of all that bid, or would, were worth their cost when asked last; probes ask for others."""

    @property
    def nodes_per_level(self) -> float:
        """Nodes a tree has had for each level of its depth."""
        return self._nodes_per_level

    def observe_tree(self, acceptance: Acceptance, *, nodes: int, depth: int, matched: int) -> None:
        """Take in one verified tree, of which the path of length `matched` was right."""
        tried = min(depth, matched + 1)
        acceptance.observe(tried, matched)
        self._overall.observe(tried, matched)
        self._nodes_per_level += _FAST * (nodes / depth - self._nodes_per_level)

    def observe_wait(self, seconds: float, *, asked: int, arrived: int, levels: int, running: int = 0) -> None:
        """Take in the wait for trees: `arrived` of `asked` came, the deepest with `levels` levels.

        `running` requests shared the step, those that asked among them.
        Of the latest waits the median counts: a graph that is captured, or a process that is held up, is not the price.
        """
        load = self.costs.seconds(asked) / self.costs.seconds(1)
        running = max(running, asked)
        key = running.bit_length(), asked.bit_length()
        if key not in self._waits:
            self._waits[key] = deque([self._wait_per_level(asked, running)] * (_RECENT // 2), _RECENT)
        self._waits[key].append(seconds / ((1 + levels) * load))
        self._presence += _FAST * (arrived / asked - self._presence)

    def levels(self, bidders: Sequence[Bidder], rows: int, others: Sequence[Bidder] = ()) -> list[int]:
        """Depth granted to each bidder, in order; `rows` is what the step has without their trees.

        `others` cannot have any yet: none are granted unless it would pay for all of them together too.
        """
        own, whole = self._bids
        granted = self._weigh(own, bidders, rows)
        self.pays = any(self._weigh(whole, (*bidders, *others), rows)) if others else any(granted)
        if self.pays:
            self._plain_steps = 0
            return list(granted)
        self._plain_steps += 1
        if self._plain_steps % FORGET_EVERY == 0:
            self._waits.clear()
        if self._plain_steps % PROBE_EVERY < PROBE_STEPS and self._plain_steps >= PROBE_EVERY:
            return [min(PROBE_LEVELS, bidder.max_levels) for bidder in bidders]
        return [0] * len(bidders)

    def prepare(self) -> None:
        """Weigh, ahead of the next `levels`, what it was asked the last time, by what is known by then."""
        own, _ = self._bids
        if own.bidders:
            self._weigh(own, own.bidders, own.rows)

    def _weigh(self, last: _Weighing, bidders: Sequence[Bidder], rows: int) -> list[int]:
        """What is worth its cost to each bidder; looked up where all that matters is as it was the last time."""
        same_size = (len(bidders), rows) == (len(last.bidders), last.rows)
        last.bidders, last.rows = bidders, rows
        if same_size and not any(last.granted) and self._plain_steps % WEIGH_EVERY:
            return last.granted
        bids = [(bidder.acceptance.tried, bidder.acceptance.matched, bidder.max_levels) for bidder in bidders]
        overall = self._overall.tried, self._overall.matched
        known = self._presence, self._nodes_per_level, self._wait_per_level(len(bidders), rows), self.costs.seconds(1)
        facts = (bids, rows, overall, known)
        if facts != last.facts:
            chances, indices, levels = self._offers(bidders)
            taken = self._best_prefix(chances, levels, max(rows, 1), len(bidders))
            last.facts, last.granted = facts, np.bincount(indices[:taken], minlength=len(bidders)).tolist()
        return last.granted

    def _wait_per_level(self, asked: int, running: int) -> float:
        """As measured in steps of so many requests, or the nearest number of them; before any is a guess."""
        if not self._waits:
            return 0.25 * self.costs.seconds(1)
        size, bits = running.bit_length(), asked.bit_length()
        return median(self._waits[min(self._waits, key=lambda key: 2 * abs(key[0] - size) + abs(key[1] - bits))])

    def _offers(self, bidders: Sequence[Bidder]) -> tuple[Floats, Ints, Ints]:
        """Chances that levels are output, whose, and which: best first; a level never precedes the one above it."""
        prior = self._overall.rate(0.7)
        rates = np.array([bidder.acceptance.rate(prior) for bidder in bidders])
        most = np.array([min(MAX_LEVELS, bidder.max_levels) for bidder in bidders])
        levels = np.arange(1, MAX_LEVELS + 1)
        chances = np.cumprod(np.repeat(rates[:, None], MAX_LEVELS, axis=1), axis=1)
        indices, places = np.nonzero((chances >= _LEAST_CHANCE) & (levels <= most[:, None]))
        offered = chances[indices, places]
        order = np.lexsort((indices, places, -offered))
        return offered[order], indices[order], levels[places[order]]

    def _best_prefix(self, chances: Floats, levels: Ints, rows: int, bidders: int) -> int:
        """How many of the best offers to take."""
        if not len(chances):
            return 0
        load = self.costs.seconds(max(bidders, 1)) / self.costs.seconds(1)
        wait = self._wait_per_level(bidders, rows) * load
        tokens = rows + self._presence * np.cumsum(chances)
        drafted: Floats = self._presence * self._nodes_per_level * np.arange(1.0, len(chances) + 1)
        drafted += rows
        seconds = self.costs.each(drafted) + wait * (1 + np.maximum.accumulate(levels))
        rates = tokens / seconds
        best = int(rates.argmax())
        return best + 1 if rates[best] > _WORTH * rows / self.costs.seconds(rows) else 0
