"""Whether one drafter's trees are worth less than another's, judged while both serve.

What a drafter is worth is its *acceptance length*: tokens a verify step yields, bonus token included, over the steps
that asked it for a tree. Steps of one request resemble one another, so the figure is less certain than their number
tells. Its error is that of *batch means*: sums over runs of steps, each a fair part of all that was seen (Law,
Simulation Modeling and Analysis, section 9.5.3). A batch should outlast an answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Final

MOST_BATCHES: Final = 40
LEAST_BATCHES: Final = 10
"""Fewer tell no spread."""
FIRST_BATCH: Final = 8
"""Steps."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """An acceptance length, its standard error, and the number of batches behind that."""

    length: float
    error: float
    batches: int

    def __str__(self) -> str:
        return f"{self.length:.2f} ± {2 * self.error:.2f}"


@dataclass(slots=True)
class Arm:
    """One drafter's steps, in batches of `size` steps or a little more; when there are many, pairs become one."""

    size: int = FIRST_BATCH
    batches: list[tuple[int, int]] = field(default_factory=list)
    """Steps and accepted tokens of each."""
    steps: int = 0
    accepted: int = 0
    _open: tuple[int, int] = (0, 0)

    @property
    def tokens(self) -> int:
        """That all steps yielded."""
        return self.steps + self.accepted

    def add(self, steps: int, accepted: int) -> None:
        """Count what has come since the last time."""
        self.steps += steps
        self.accepted += accepted
        self._open = (self._open[0] + steps, self._open[1] + accepted)
        if self._open[0] >= self.size:
            self.batches.append(self._open)
            self._open = (0, 0)
        if len(self.batches) >= MOST_BATCHES:
            pairs = zip(self.batches[::2], self.batches[1::2], strict=True)
            self.batches = [(one[0] + two[0], one[1] + two[1]) for one, two in pairs]
            self.size *= 2

    def estimate(self) -> Estimate | None:
        """None of fewer than `LEAST_BATCHES`. The variance is the linearised one of a ratio of sums."""
        count = len(self.batches)
        if count < LEAST_BATCHES:
            return None
        steps = sum(batch[0] for batch in self.batches)
        rate = sum(batch[1] for batch in self.batches) / steps
        spread = sum((accepted - rate * taken) ** 2 for taken, accepted in self.batches) * count / (count - 1)
        return Estimate(1.0 + rate, math.sqrt(spread) / steps, count)


def significantly_below(new: Estimate, old: Estimate, *, margin: float, confidence: float) -> bool:
    """Whether `new` is less than (1 - margin) of `old`, with that confidence (Welch's test, one-sided)."""
    part = 1.0 - margin
    variances = (new.error**2, (part * old.error) ** 2)
    total = sum(variances)
    gap = part * old.length - new.length
    if total == 0.0:
        return gap > 0.0
    freedom = total**2 / sum(v**2 / (each.batches - 1) for v, each in zip(variances, (new, old), strict=True))
    return gap > quantile(confidence, freedom) * math.sqrt(total)


def quantile(confidence: float, freedom: float) -> float:
    """Of Student's t with `freedom` degrees of freedom, by its expansion about the normal one.

    Abramowitz and Stegun, 26.7.5; to 1 % from 9 degrees of freedom on and up to a confidence of 0.9999.
    """
    z = NormalDist().inv_cdf(confidence)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return float(z + sum(term / freedom**power for power, term in enumerate(terms, 1)))
