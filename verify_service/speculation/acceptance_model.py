"""How likely a drafted node is to be output: a proposer's own probabilities, calibrated by what the target decided.

The estimator is `slipstream_kernels.calibration`. Its cells are, ever finer: the range of the proposer's own
probability (or the node's rank among its siblings, where it gives none); the depth; how many tokens the request's last
tree was right for. Cells and their estimates are dense tables: a step looks estimates up and computes none.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipstream_kernels.calibration import LEAST, PROB_EDGES, Cell
from slipstream_kernels.token_tree import MAX_ROWS, TokenTree
from verify_service.core.request_state import RequestState

Floats = NDArray[np.float64]

MAX_TABLES = 64
"""Proposers, at temperature 0 and above apart, of which experience is kept."""

_EDGES = tuple(map(math.log, PROB_EDGES))
_PRIORS = (0.01, 0.035, 0.075, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.93, 0.975, 0.99, 0.6, 0.15, 0.05)
"""Of the ranges between the edges, then of the first, second and further siblings without a probability."""
_DEPTHS, _ACCEPT_LENGTHS = 8, 4
_PROB_BINS = len(_PRIORS)
_SHAPES = ((_PROB_BINS,), (_DEPTHS, _PROB_BINS), (_ACCEPT_LENGTHS, _DEPTHS, _PROB_BINS))
_FIRST_CELLS = tuple(_PROB_BINS * (min(max(depth, 1), _DEPTHS) - 1) for depth in range(MAX_ROWS + 1))
"""By the depth of a node, of one accept_length: where the cells of its ranges begin."""
_MOST = 0.98

Kind = tuple[str, bool]
"""A proposer's name, and whether the request samples."""


@dataclass(frozen=True, slots=True)
class ProposedTree:
    """A tree, whose it is, and how many tokens the request's tree before it was right for."""

    kind: Kind
    last_accept_length: int
    tree: TokenTree


def proposed_tree(state: RequestState, tree: TokenTree) -> ProposedTree:
    """Return a request's tree with what its acceptance is estimated by."""
    return ProposedTree(
        (state.draft.proposer, state.parameters.sampling.temperature > 0),
        state.draft.acceptance.last_accept_length,
        tree,
    )


class _Table:
    """One kind's cells, the coarser cells that they lie in, and the estimates of the finest."""

    __slots__ = ("_cells", "_changed", "_estimates")

    def __init__(self) -> None:
        self._cells = [[Cell() for _ in range(math.prod(shape))] for shape in _SHAPES]
        self._estimates = [0.0] * (_ACCEPT_LENGTHS * _DEPTHS * _PROB_BINS)
        self._changed = set(range(_PROB_BINS))
        """Ranges of which the estimates are out of date."""

    @property
    def estimates(self) -> list[float]:
        """Chance given the parent, of (accept_length * _DEPTHS + depth - 1) * _PROB_BINS + range."""
        if self._changed:
            self._estimate()
        return self._estimates

    def observe(self, accept_length: int, depth: int, prob_bin: int, hit: bool) -> None:
        coarse, middle, fine = self._cells
        finer = depth * _PROB_BINS + prob_bin
        for cell in (coarse[prob_bin], middle[finer], fine[accept_length * _DEPTHS * _PROB_BINS + finer]):
            cell.observe(hit)
        self._changed.add(prob_bin)

    def _estimate(self) -> None:
        coarse, middle, fine = self._cells
        for prob_bin in self._changed:
            of_bin = coarse[prob_bin].estimate(_PRIORS[prob_bin])
            for at in range(prob_bin, _DEPTHS * _PROB_BINS, _PROB_BINS):
                of_depth = middle[at].estimate(of_bin)
                for each in range(at, len(fine), _DEPTHS * _PROB_BINS):
                    self._estimates[each] = min(max(fine[each].estimate(of_depth), LEAST), _MOST)
        self._changed.clear()


class AcceptanceModel:
    """Estimates for trees, and what is learned from trees that were verified."""

    def __init__(self) -> None:
        self._tables: dict[Kind, _Table] = {}

    def path_probs(self, trees: Sequence[ProposedTree]) -> Floats:
        """Chance of each node of all trees, one after the other, that it is output; never above its parent's."""
        chances: list[float] = []
        for drafted in trees:
            chances += self._of(drafted)
        return np.array(chances)

    def prepare(self) -> None:
        """Bring estimates up to date ahead of their use."""
        for table in self._tables.values():
            _ = table.estimates

    def observe(self, drafted: ProposedTree, matched: Sequence[int]) -> None:
        """Take in a verified tree, of which the nodes `matched`, a path from the root's child down, were right."""
        tree = drafted.tree
        table, accept_length = self._table(drafted.kind), min(drafted.last_accept_length, _ACCEPT_LENGTHS - 1)
        parents, depths, logs = tree.parents, tree.depths, tree.log_probs
        right = {-1, *matched}
        ranks = dict.fromkeys(right, 0)
        for node, parent in enumerate(parents):
            if parent not in right:
                continue
            prob_bin = _rank_bin(ranks[parent]) if logs is None else _prob_bin(logs, node, parent)
            ranks[parent] += 1
            table.observe(accept_length, min(depths[node], _DEPTHS) - 1, prob_bin, node in right)

    def _of(self, drafted: ProposedTree) -> list[float]:
        """`paths` of one tree. Plain numbers: a tree has too few for arrays to pay."""
        tree = drafted.tree
        estimates, first = (
            self._table(drafted.kind).estimates,
            min(drafted.last_accept_length, _ACCEPT_LENGTHS - 1) * _DEPTHS * _PROB_BINS,
        )
        count, parents, logs = len(tree), tree.parents, tree.log_probs
        # Behind the last node comes the root, as index -1.
        chances = [1.0] * (count + 1)
        if logs is None:
            prob_bins = _ranks(tree)
        else:
            rooted = (*logs, 0.0)
            prob_bins = [bisect_right(_EDGES, log - rooted[parent]) for log, parent in zip(logs, parents, strict=True)]
        for node, parent, depth, prob_bin in zip(range(count), parents, tree.depths, prob_bins, strict=True):
            chances[node] = estimates[first + _FIRST_CELLS[depth] + prob_bin] * chances[parent]
        del chances[count]
        return chances

    def _table(self, kind: Kind) -> _Table:
        table = self._tables.get(kind)
        if table is None:
            if len(self._tables) >= MAX_TABLES:
                del self._tables[next(iter(self._tables))]
            table = self._tables[kind] = _Table()
        return table


def _ranks(tree: TokenTree) -> list[int]:
    seen: dict[int, int] = {}
    ranks = []
    for parent in tree.parents:
        rank = seen.get(parent, 0)
        ranks.append(_rank_bin(rank))
        seen[parent] = rank + 1
    return ranks


def _rank_bin(rank: int) -> int:
    return len(_EDGES) + 1 + min(2, rank)


def _prob_bin(logs: Sequence[float], node: int, parent: int) -> int:
    return bisect_right(_EDGES, logs[node] - (logs[parent] if parent >= 0 else 0.0))
