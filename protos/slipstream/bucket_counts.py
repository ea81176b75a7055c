"""A histogram for paths that run once a token or a step, where a lock an observation would cost too much."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class BucketCounts:
    """How many observed values fell at or below each of the rising `bounds`, and above the last one.

    One thread observes; any thread may read.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        """The sum of all values."""

    def observe(self, value: float) -> None:
        """Count a value in."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copy(self) -> BucketCounts:
        """The counts of this moment."""
        made = BucketCounts(self.bounds)
        made.counts, made.total = self.counts.copy(), self.total
        return made


class PositionCounts:
    """How many drafts had their first, second, ... token accepted.

    Position p, from 0 on, is that of the drafted tokens at depth p + 1. One thread counts; any thread may read.
    """

    __slots__ = ("_ends", "drafts")

    def __init__(self) -> None:
        self._ends: list[int] = []
        self.drafts = 0
        """Steps with a draft, counted once for each request that they decided tokens of."""

    def count(self, drafted: int, accepted: int) -> None:
        """Take in one step of one request. A step without a draft counts for nothing."""
        if not drafted:
            return
        self.drafts += 1
        ends = self._ends
        if accepted > len(ends):
            ends.extend([0] * (accepted - len(ends)))
        if accepted:
            ends[accepted - 1] += 1

    def by_position(self) -> list[int]:
        """Accepted tokens of each position, as far as there has been any; they fall from position to position."""
        total, counts = 0, []
        for ended in reversed(self._ends.copy()):
            total += ended
            counts.append(total)
        return counts[::-1]
