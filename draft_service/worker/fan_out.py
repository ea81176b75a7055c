"""How many trees ahead are worth making, by how often the end that each of them supposes has come true."""

from __future__ import annotations

EXPLORE_EVERY = 32
"""One step in so many is prepared for to the limit, so that ranks which get no trees are still judged."""

_FIRST = 0.1
_FAST = 0.05
_WORTH = 0.01
"""Share of steps in which a rank must come true."""


class FanOut:
    """Learns, of one proposer, how often the n-th likeliest end came true; old steps fade. At first all get trees."""

    __slots__ = ("_chances", "_steps")

    def __init__(self, most: int) -> None:
        self._chances = [_FIRST] * most
        self._steps = 0

    @property
    def most(self) -> int:
        """Trees at most."""
        return len(self._chances)

    @property
    def worth(self) -> int:
        """Trees for a step: up to the last rank that pays; 1 at least."""
        return max((rank for rank, chance in enumerate(self._chances, 1) if chance >= _WORTH), default=1)

    def next(self) -> int:
        """Trees for the step at hand."""
        self._steps += 1
        return self.most if self._steps % EXPLORE_EVERY == 0 else self.worth

    def observe(self, prepared: int, rank: int | None) -> None:
        """A step for whose likeliest ends, so many, there were trees, has had the one of this rank, from 0, or none."""
        for each in range(min(prepared, self.most)):
            self._chances[each] += _FAST * ((each == rank) - self._chances[each])
