"""Number of trees to draft ahead a step, by how often the outcome of each rank came true."""

from __future__ import annotations

EXPLORE_EVERY = 32
"""One step in so many gets the largest fan-out, so that all ranks are measured."""

_INITIAL_CHANCE = 0.1
_LEARNING_RATE = 0.05
_MIN_CHANCE = 0.01
"""Share of steps in which a rank must come true to get a tree."""


class FanOut:
    """Learns how often the n-th likeliest outcome of one proposer came true; old steps fade. Starts at the largest."""

    __slots__ = ("_chances", "_steps")

    def __init__(self, most: int) -> None:
        self._chances = [_INITIAL_CHANCE] * most
        self._steps = 0

    @property
    def most(self) -> int:
        """Trees at most."""
        return len(self._chances)

    @property
    def worth(self) -> int:
        """Trees a step, 1 at least: up to the last rank whose chance is `_MIN_CHANCE`."""
        return max((rank for rank, chance in enumerate(self._chances, 1) if chance >= _MIN_CHANCE), default=1)

    def next(self) -> int:
        """Trees for the step at hand."""
        self._steps += 1
        return self.most if self._steps % EXPLORE_EVERY == 0 else self.worth

    def observe(self, prepared: int, rank: int | None) -> None:
        """Record a step with trees for its `prepared` likeliest outcomes; `rank`, from 0, came true, or None."""
        for each in range(min(prepared, self.most)):
            self._chances[each] += _LEARNING_RATE * ((each == rank) - self._chances[each])
