"""How likely a drafted node is to be output: a proposer's own probabilities, calibrated by what the target decided.

A node's chance given that its parent is output is the share of hits among earlier nodes like it. Likeness is a chain of
ever finer cells: the range of the proposer's own probability (or the node's rank among its siblings, where it gives
none); the depth; how many tokens the request's last tree was right for. A cell without experience believes the coarser
one before it, the coarsest believes the proposer. Old experience fades, so that a change of workload is followed.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from slipstream_kernels.token_tree import TokenTree

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_TABLES = 64
"""Proposers, at temperature 0 and above apart, of which experience is kept."""

_EDGES = tuple(map(math.log, (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.96, 0.99)))
_PRIORS = (0.01, 0.035, 0.075, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.93, 0.975, 0.99, 0.6, 0.15, 0.05)
"""Of the ranges between the edges, then of the first, second and further siblings without a probability."""
_DEPTHS, _STREAKS = 8, 4
_SHAPES = ((len(_PRIORS),), (_DEPTHS, len(_PRIORS)), (_STREAKS, _DEPTHS, len(_PRIORS)))
_WEIGHT, _MEMORY = 8.0, 1000.0
_LEAST, _MOST = 0.001, 0.98

Kind = tuple[str, bool]
"""A proposer's name, and whether the request samples."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """A tree, whose it is, and how many tokens the request's tree before it was right for."""

    kind: Kind
    streak: int
    tree: TokenTree


class _Table:
    """Hits and trials of one kind's cells, as [hits, trials], and of the coarser cells that they lie in."""

    __slots__ = ("_cells", "_estimates")

    def __init__(self) -> None:
        self._cells = [[[0.0, 0.0] for _ in range(math.prod(shape))] for shape in _SHAPES]
        self._estimates: Floats | None = None

    @property
    def estimates(self) -> Floats:
        """Chance given the parent, float64 [streaks, depths, ranges]."""
        if self._estimates is None:
            estimate: Floats = np.array(_PRIORS)
            for cells, shape in zip(self._cells, _SHAPES, strict=True):
                counts = np.array(cells).reshape(*shape, 2)
                estimate = (counts[..., 0] + _WEIGHT * estimate) / (counts[..., 1] + _WEIGHT)
            self._estimates = np.clip(estimate, _LEAST, _MOST)
        return self._estimates

    def observe(self, streak: int, depth: int, claim: int, hit: bool) -> None:
        finer = depth * len(_PRIORS) + claim
        for cells, at in zip(self._cells, (claim, finer, streak * _DEPTHS * len(_PRIORS) + finer), strict=True):
            counts = cells[at]
            counts[0] += hit - counts[0] / _MEMORY
            counts[1] += 1.0 - counts[1] / _MEMORY
        self._estimates = None


class PathChances:
    """Estimates for trees, and what is learned from trees that were verified."""

    def __init__(self) -> None:
        self._tables: dict[Kind, _Table] = {}

    def paths(self, trees: Sequence[Drafted]) -> Floats:
        """Chance of each node of all trees, one after the other, that it is output; never above its parent's."""
        nodes = _Nodes(trees)
        estimates = np.stack([self._table(drafted.kind).estimates for drafted in trees])
        chances: Floats = estimates[nodes.tree, nodes.streak, nodes.depth, nodes.claim]
        for depth in range(2, nodes.deepest + 1):
            here = np.flatnonzero(nodes.true_depth == depth)
            chances[here] *= chances[nodes.parent[here]]
        return chances

    def observe(self, drafted: Drafted, matched: Sequence[int]) -> None:
        """Take in a verified tree, of which the nodes `matched`, a path from the root's child down, were right."""
        tree = drafted.tree
        table, streak = self._table(drafted.kind), min(drafted.streak, _STREAKS - 1)
        right = {-1, *matched}
        ranks = dict.fromkeys(right, 0)
        for node, parent in enumerate(tree.parents):
            if parent not in right:
                continue
            claim = _unclaimed(ranks[parent]) if tree.log_probs is None else _claim(tree.log_probs, node, parent)
            ranks[parent] += 1
            table.observe(streak, min(tree.depths[node], _DEPTHS) - 1, claim, node in right)

    def _table(self, kind: Kind) -> _Table:
        table = self._tables.get(kind)
        if table is None:
            if len(self._tables) >= MOST_TABLES:
                del self._tables[next(iter(self._tables))]
            table = self._tables[kind] = _Table()
        return table


class _Nodes:
    """The nodes of all trees side by side, int64 each: tree, parent (index here, -1: root) and indices of cells."""

    __slots__ = ("claim", "deepest", "depth", "parent", "streak", "tree", "true_depth")

    def __init__(self, trees: Sequence[Drafted]) -> None:
        sizes = [len(drafted.tree) for drafted in trees]
        count = sum(sizes)
        self.tree: Ints = np.repeat(np.arange(len(trees)), sizes)
        first = np.repeat(np.cumsum(sizes) - sizes, sizes)
        own = np.fromiter(chain.from_iterable(drafted.tree.parents for drafted in trees), np.int64, count)
        self.parent: Ints = np.where(own < 0, -1, own + first)
        depths = chain.from_iterable(drafted.tree.depths for drafted in trees)
        self.true_depth: Ints = np.fromiter(depths, np.int64, count)
        self.deepest = int(self.true_depth.max(initial=0))
        self.depth: Ints = np.minimum(self.true_depth, _DEPTHS) - 1
        self.streak: Ints = np.repeat([min(drafted.streak, _STREAKS - 1) for drafted in trees], sizes)
        self.claim: Ints = self._claims(trees, count)

    def _claims(self, trees: Sequence[Drafted], count: int) -> Ints:
        """The range of each node's own probability given its parent, or what stands for its rank."""
        logs = np.fromiter(
            chain.from_iterable(drafted.tree.log_probs or repeat(0.0, len(drafted.tree)) for drafted in trees),
            np.float64,
            count,
        )
        given = logs - np.where(self.parent < 0, 0.0, logs[self.parent])
        claims = np.searchsorted(_EDGES, given, side="right")
        first = 0
        for drafted in trees:
            if drafted.tree.log_probs is None:
                claims[first : first + len(drafted.tree)] = _ranks(drafted.tree)
            first += len(drafted.tree)
        return claims


def _ranks(tree: TokenTree) -> list[int]:
    seen: dict[int, int] = {}
    ranks = []
    for parent in tree.parents:
        rank = seen.get(parent, 0)
        ranks.append(_unclaimed(rank))
        seen[parent] = rank + 1
    return ranks


def _unclaimed(rank: int) -> int:
    return len(_EDGES) + 1 + min(2, rank)


def _claim(logs: Sequence[float], node: int, parent: int) -> int:
    return bisect_right(_EDGES, logs[node] - (logs[parent] if parent >= 0 else 0.0))
