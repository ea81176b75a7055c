"""How likely a drafted node is to be output: a proposer's own probabilities, calibrated by what the target decided.

The estimator is `slipstream_kernels.calibration`, its cells are those of `slipstream_kernels.acceptance_cells`: one
call judges all trees of a step, and a step looks estimates up and computes none.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from slipstream_kernels.acceptance_cells import (
    BINS,
    CELLS,
    ESTIMATES,
    Bools,
    Floats,
    Ints,
    estimate_cells,
    observe_trees,
    path_chances,
)
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.request_state import RequestState

MAX_TABLES = 64
"""Proposers, at temperature 0 and above apart, of which experience is kept."""

Kind = tuple[str, bool]
"""A proposer's name, and whether the request samples."""


class ProposedTree(NamedTuple):
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
    """One kind's cells and the estimates of the finest, as `acceptance_cells` has them."""

    __slots__ = ("_changed", "_estimates", "_hits", "_trials")

    def __init__(self) -> None:
        self._hits: Floats = np.zeros(CELLS)
        self._trials: Floats = np.zeros(CELLS)
        self._estimates: Floats = np.zeros(ESTIMATES)
        self._changed: Bools = np.ones(BINS, np.bool_)

    @property
    def estimates(self) -> Floats:
        """Chance given the parent, float64 [ESTIMATES]."""
        estimate_cells(self._hits, self._trials, self._changed, self._estimates)
        return self._estimates

    def observe(self, trees: _FlatTrees, right: Sequence[Sequence[int]]) -> None:
        nodes = [node for path in right for node in path]
        ends = list(accumulate(map(len, right)))
        observe_trees(*trees, _ints(ends), _ints(nodes), self._hits, self._trials, self._changed)


class _FlatTrees(NamedTuple):
    """Trees end to end, as `acceptance_cells` has them."""

    ends: Ints
    parents: Ints
    logs: Floats
    has_logs: Bools
    lengths: Ints

    @classmethod
    def of(cls, trees: Sequence[ProposedTree]) -> _FlatTrees:
        parents: list[int] = []
        logs: list[float] = []
        ends: list[int] = []
        has_logs: list[bool] = []
        for _, _, tree in trees:
            parents += tree.parents
            log_probs = tree.log_probs
            logs += (0.0,) * len(tree.parents) if log_probs is None else log_probs
            has_logs.append(log_probs is not None)
            ends.append(len(parents))
        lengths = [drafted.last_accept_length for drafted in trees]
        floats = np.fromiter(logs, np.float64, len(logs))
        return cls(_ints(ends), _ints(parents), floats, np.array(has_logs, np.bool_), _ints(lengths))


class AcceptanceModel:
    """Estimates for trees, and what is learned from trees that were verified."""

    def __init__(self) -> None:
        self._tables: dict[Kind, _Table] = {}
        _compile()

    def path_probs(self, trees: Sequence[ProposedTree]) -> Floats:
        """Chance of each node of all trees, one after the other, that it is output; never above its parent's."""
        kinds = list(dict.fromkeys(drafted.kind for drafted in trees))
        places = {kind: place for place, kind in enumerate(kinds)}
        flat = _FlatTrees.of(trees)
        chances = np.empty(len(flat.parents))
        if len(chances):
            estimates = np.stack([self._table(kind).estimates for kind in kinds])
            path_chances(*flat, _ints([places[drafted.kind] for drafted in trees]), estimates, chances)
        return chances

    def prepare(self) -> None:
        """Bring estimates up to date ahead of their use."""
        for table in self._tables.values():
            _ = table.estimates

    def observe(self, verified: Sequence[tuple[ProposedTree, Sequence[int]]]) -> None:
        """Take in verified trees; of each the nodes, a path from the root's child down, that were right."""
        by_kind: dict[Kind, list[tuple[ProposedTree, Sequence[int]]]] = {}
        for each in verified:
            by_kind.setdefault(each[0].kind, []).append(each)
        for kind, judged in by_kind.items():
            self._table(kind).observe(_FlatTrees.of([drafted for drafted, _ in judged]), [right for _, right in judged])

    def _table(self, kind: Kind) -> _Table:
        table = self._tables.get(kind)
        if table is None:
            if len(self._tables) >= MAX_TABLES:
                del self._tables[next(iter(self._tables))]
            table = self._tables[kind] = _Table()
        return table


def _ints(values: Sequence[int]) -> Ints:
    return np.fromiter(values, np.int64, len(values))


def _compile() -> None:
    """So that no step waits for it."""
    table = _Table()
    none = _FlatTrees.of([])
    table.observe(none, [])
    path_chances(*none, none.ends, table.estimates[None], np.empty(0))
