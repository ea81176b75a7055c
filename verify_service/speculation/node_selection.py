"""Which drafted nodes are worth their rows: the likeliest of all requests in a step, as many as pay."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from slipstream_kernels.token_tree import TokenTree
from verify_service.core.step_time_model import Floats, StepTimeModel
from verify_service.speculation.acceptance_model import AcceptanceModel, ProposedTree

EXPLORE_EVERY = 64
"""One step in so many takes all nodes, so that those which are never chosen are still judged."""

LEAST_GAIN = 1.02
"""Times that the estimates of a step do not tell apart.

Trees that promise less are not asked for, and where all nodes together raise a pass's time by less, there is nothing to
choose.
"""


class NodeSelector:
    """Keeps, of what arrived for a step, the nodes that make tokens per second highest.

    Nodes of all trees compete by the chance that they are output, the likeliest first, so that a parent always comes
    before its children; of the sums of the first n, the one that yields most tokens per second of the pass wins.
    """

    def __init__(self, costs: StepTimeModel, acceptance: AcceptanceModel) -> None:
        self._costs = costs
        self._acceptance = acceptance
        self._steps = 0

    def choose(
        self, trees: Sequence[ProposedTree], *, requests: int, rows: int, tokens: float, waited: float
    ) -> list[TokenTree | None]:
        """What of each tree the step takes; None where nothing.

        requests, rows, tokens: what the step has and yields without these trees. waited: seconds it has cost already.
        """
        kept = self._kept(trees, requests=requests, rows=rows, tokens=tokens, waited=waited)
        return [drafted.tree for drafted in trees] if kept is None else _parts(trees, kept)

    def sizes(
        self, trees: Sequence[ProposedTree], *, requests: int, rows: int, tokens: float, waited: float
    ) -> list[int]:
        """How many nodes of each tree `choose` would take, whose arguments these are."""
        kept = self._kept(trees, requests=requests, rows=rows, tokens=tokens, waited=waited)
        ends = list(accumulate(len(drafted.tree) for drafted in trees))
        if kept is None:
            return [len(drafted.tree) for drafted in trees]
        within = [0, *(bisect_left(kept, end) for end in ends)]
        return [end - begin for begin, end in pairwise(within)]

    def _kept(
        self, trees: Sequence[ProposedTree], *, requests: int, rows: int, tokens: float, waited: float
    ) -> list[int] | None:
        """Ascending indices into the nodes of all trees side by side; None where all nodes are taken."""
        nodes = sum(len(drafted.tree) for drafted in trees)
        self._steps += 1
        if not nodes or self._steps % EXPLORE_EVERY == 0:
            return None
        experts = self._costs.experts
        if experts is None:
            seconds = self._costs.predict_range(requests, rows - requests, nodes + 1)
            if seconds[nodes] < LEAST_GAIN * seconds[0]:
                return None
        chances = self._acceptance.path_probs(trees)
        order = np.argsort(-chances, kind="stable")
        if experts is not None:
            counted = _sums(experts.of_nodes([drafted.tree for drafted in trees], order))
            others = rows - requests
            seconds = self._costs.predict(requests, others + np.arange(nodes + 1.0), others + counted)
            if seconds[nodes] < LEAST_GAIN * seconds[0]:
                return None
        yields = _sums(chances[order])
        yields += tokens
        yields /= waited + seconds
        best = int(yields.argmax())
        return None if best == nodes else sorted(order[:best].tolist())


def _sums(values: Floats) -> Floats:
    """Of the first 0, 1, 2, ... of them."""
    sums = np.zeros(len(values) + 1)
    np.cumsum(values, out=sums[1:])
    return sums


def _parts(trees: Sequence[ProposedTree], kept: Sequence[int]) -> list[TokenTree | None]:
    """The trees of the nodes `kept`, ascending indices into the nodes of all trees side by side."""
    parts: list[TokenTree | None] = []
    first = begin = 0
    for drafted in trees:
        tree = drafted.tree
        end = bisect_left(kept, first + len(tree), begin)
        if end - begin == len(tree):
            parts.append(tree)
        else:
            parts.append(tree.part([node - first for node in kept[begin:end]]) if end > begin else None)
        first, begin = first + len(tree), end
    return parts
