"""How often a drafted token is right, learned from what the target decided.

A proposer's own probabilities are scores: a suffix that occurred once gives its continuation probability 1. Here the
probability that a node is right, given that its parent was, is the share of hits among earlier nodes like it. Likeness
is a chain of ever finer cells; a cell without experience believes the coarser one before it, the coarsest believes the
proposer. Old experience fades, so that a change of workload is followed.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

LEAST, MOST = 0.001, 0.999
"""Bounds of an estimate: nothing is certain, and the probability of a path falls with every step."""

_EDGES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.96, 0.99)


def bucket(probability: float) -> int:
    """Which of 14 ranges a probability is in."""
    return bisect(_EDGES, probability)


@dataclass(slots=True)
class Calibration:
    """Hits and trials of cells. `weight`: trials that the coarser estimate counts for. `memory`: trials remembered."""

    weight: float = 8.0
    memory: float = 1000.0
    _cells: dict[Hashable, list[float]] = field(default_factory=dict)

    def estimate(self, cells: Iterable[Hashable], prior: float) -> float:
        """Probability that a node of these cells, coarsest first, is right."""
        for cell in cells:
            hits, trials = self._cells.get(cell, (0.0, 0.0))
            prior = (hits + self.weight * prior) / (trials + self.weight)
        return min(MOST, max(LEAST, prior))

    def observe(self, cells: Iterable[Hashable], hit: bool) -> None:
        """A node of these cells was right or was not; its parent was right."""
        for cell in cells:
            counts = self._cells.setdefault(cell, [0.0, 0.0])
            keep = 1.0 - 1.0 / self.memory
            counts[0] = counts[0] * keep + hit
            counts[1] = counts[1] * keep + 1.0
