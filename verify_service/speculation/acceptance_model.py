"""How likely drafted tokens are to be output, learned from what the target decided.

Levels of a tree that is yet to be asked for have a rate: the request's own, or its proposer's where little was seen of
the request. Nodes of a tree that came have their proposer's own probabilities, calibrated: the estimator is
`slipstream_kernels.calibration`, its cells are those of `slipstream_kernels.acceptance_cells`. One call judges all
trees of a step, and a step looks estimates of nodes up and computes none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from verify_service.core.acceptance_history import AcceptanceHistory
from verify_service.core.request_state import RequestState

MAX_TABLES = 64
"""Proposers, at temperature 0 and above apart, of which experience with nodes is kept."""
_PRIOR, _PRIOR_LEVELS = 0.7, 20.0
"""Rate of a proposer of which nothing was seen, and the levels that it counts as."""
_SURPRISE = 0.1
"""By what a probe must find a rate another for one more to follow at once: its 20 levels err by that."""

Kind = tuple[str, bool]
"""A proposer's name, and whether the request samples."""


class ProposedTree(NamedTuple):
    """A tree, whose it is, and what became of the request's trees before it.

    history: None for a tree that no drafter made, which tells nothing of the levels of others.
    """

    kind: Kind
    tree: TokenTree
    history: AcceptanceHistory | None = None


def proposed_tree(state: RequestState, tree: TokenTree) -> ProposedTree:
    """Return a request's tree with what its acceptance is estimated by."""
    kind = state.draft.proposer, state.parameters.sampling.temperature > 0
    return ProposedTree(kind, tree, state.draft.acceptance)


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
        for _, tree, _ in trees:
            parents += tree.parents
            log_probs = tree.log_probs
            logs += (0.0,) * len(tree.parents) if log_probs is None else log_probs
            has_logs.append(log_probs is not None)
            ends.append(len(parents))
        lengths = [0 if history is None else history.last_accept_length for _, _, history in trees]
        floats = np.fromiter(logs, np.float64, len(logs))
        return cls(_ints(ends), _ints(parents), floats, np.array(has_logs, np.bool_), _ints(lengths))


class AcceptanceModel:
    """Estimates for trees, and what is learned from trees that were verified."""

    def __init__(self) -> None:
        self._tables: dict[Kind, _Table] = {}
        self._proposers: dict[str, AcceptanceHistory] = {}
        """By the proposer's name, what became of trees of all its requests, those that have ended included."""
        self._before_probe: dict[str, float] = {}
        """Rates of proposers as they were known when the last probe began."""
        _compile()

    def level_rates(self, requests: Sequence[tuple[AcceptanceHistory, str]]) -> Floats:
        """Chance of a level of each request's next tree if the level above is right, float64 [requests].

        requests: of each what became of its trees, and its proposer's name.
        """
        priors = {name: self._of_proposer(name).rate(_PRIOR) for name in dict.fromkeys([name for _, name in requests])}
        return np.array([history.rate(priors[name]) for history, name in requests])

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
        """Take in a step's verified trees; of each the nodes, a path from the root's child down, that were right."""
        by_kind: dict[Kind, list[tuple[ProposedTree, Sequence[int]]]] = {}
        for each in verified:
            by_kind.setdefault(each[0].kind, []).append(each)
        for kind, judged in by_kind.items():
            self._table(kind).observe(_FlatTrees.of([drafted for drafted, _ in judged]), [right for _, right in judged])
        for drafted, right in verified:
            for history in self._histories(drafted):
                history.observe(min(drafted.tree.depth, len(right) + 1), len(right))

    def expect(self, untaken: Sequence[ProposedTree]) -> None:
        """Take in trees of which no node was worth its row: the first level of each counts by its chance."""
        chances, first = self.path_probs(untaken), 0
        for drafted in untaken:
            chance = min(1.0, float(sum(chances[first + node] for node in drafted.tree.children(-1))))
            first += len(drafted.tree)
            for history in self._histories(drafted):
                history.expect(chance)

    def begin_probe(self) -> None:
        """Remember the rates of proposers, and count for half what is behind them: the trees of a probe are few."""
        self._before_probe = {name: known.rate(_PRIOR) for name, known in self._proposers.items()}
        for known in self._proposers.values():
            known.fade()

    def has_learned(self) -> bool:
        """Whether a proposer is right more or less often than before the probe, so that one more is to tell by what."""
        return any(
            abs(self._proposers[name].rate(_PRIOR) - before) > _SURPRISE for name, before in self._before_probe.items()
        )

    def leave_out(self, histories: Iterable[AcceptanceHistory]) -> None:
        """Count for half what was seen of requests that a probe leaves out, so that those that it asks decide."""
        for history in histories:
            history.fade()

    def _histories(self, drafted: ProposedTree) -> tuple[AcceptanceHistory, ...]:
        """What a tree is told to: of its request, and of its proposer."""
        proposer, _ = drafted.kind
        return () if drafted.history is None else (drafted.history, self._of_proposer(proposer))

    def _of_proposer(self, name: str) -> AcceptanceHistory:
        """What became of a proposer's trees, as if it had been tried a little already."""
        known = self._proposers.get(name)
        if known is None:
            known = self._proposers[name] = AcceptanceHistory(_PRIOR_LEVELS, _PRIOR_LEVELS * _PRIOR)
        return known

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
