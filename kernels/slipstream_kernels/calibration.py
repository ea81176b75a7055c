"""How often a drafted token is right, learned from what the target decided.

A proposer's own probabilities are scores: a suffix that occurred once gives its continuation probability 1. Here the
probability that a node is right, given that its parent was, is the share of hits among earlier nodes like it. Likeness
is a chain of ever finer cells: a cell without experience believes the coarser one before it, the coarsest believes a
prior. Old experience fades, so that a change of workload is followed.

A verify service keeps its `Cell`s in dense tables (`verify_service.speculation.acceptance_model`). The hybrid proposer
keeps them in a `Calibration` by any key: who drafted the same token, and who another one, makes keys that no table has
room for.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

PROB_EDGES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.96, 0.99)
"""Between ranges of a proposer's own probability."""
WEIGHT = 8.0
"""Trials that the coarser estimate counts for."""
MEMORY = 1000.0
"""Trials that a cell remembers."""
LEAST, MOST = 0.001, 0.999
"""Bounds of an estimate: nothing is certain, and the probability of a path falls with every step."""


def prob_bin(probability: float) -> int:
    """Return which of the `len(PROB_EDGES)` + 1 ranges a probability is in."""
    return bisect(PROB_EDGES, probability)


@dataclass(slots=True)
class Cell:
    """Nodes that count as alike: how many were tried and how many were right, the older the less."""

    hits: float = 0.0
    trials: float = 0.0

    def observe(self, hit: bool, memory: float = MEMORY) -> None:
        """Take in a node whose parent was right, and whether the node was."""
        self.hits += hit - self.hits / memory
        self.trials += 1.0 - self.trials / memory

    def estimate(self, prior: float) -> float:
        """Return the probability that a node of the cell is right, where the coarser cell says `prior`."""
        return (self.hits + WEIGHT * prior) / (self.trials + WEIGHT)


@dataclass(slots=True)
class Calibration:
    """Cells with experience. `memory`: trials that each remembers."""

    memory: float = MEMORY
    _cells: dict[Hashable, Cell] = field(default_factory=dict)

    def estimate(self, cells: Iterable[Hashable], prior: float) -> float:
        """Return the probability that a node of these cells, coarsest first, is right."""
        for key in cells:
            cell = self._cells.get(key)
            if cell is not None:
                prior = cell.estimate(prior)
        return min(MOST, max(LEAST, prior))

    def observe(self, cells: Iterable[Hashable], hit: bool) -> None:
        """Take in that a node of these cells, whose parent was right, was right or was not."""
        for key in cells:
            self._cells.setdefault(key, Cell()).observe(hit, self.memory)
