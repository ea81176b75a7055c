"""Experts that steps of a mixture wake: how many, against rows that choose independently, and what drafted nodes add.

A row chooses k of a layer's E experts. Of n rows that choose independently E (1 - (1 - k/E)^n) are awake on average, so
that a number of experts awake is as many as some number of independent rows have. In these a step is accounted for: a
request is one of them less what requests share, a node is what it adds to those that are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from slipstream_kernels.models.checkpoint.expert_form import ExpertForm
from slipstream_kernels.token_tree import TokenTree

Floats = NDArray[np.float64]

_STEP = 0.2
"""Share of what a step says that is news."""
_TELLING = 0.9
"""Share of all experts awake up to which it tells how many rows woke them."""
_LEAST, _MOST = 0.05, 1.5
"""Independent rows that a request or a node counts as."""


@dataclass(slots=True)
class ExpertCounts:
    """Of steps of one kind, from the start on: their rows, experts awake over all layers, and what these would be of as
    many rows that choose independently.
    """

    rows: int = 0
    awake: int = 0
    independent: float = 0.0


class ExpertOverlap:
    """What is known of a model's experts. Written by the loop's thread.

    Three figures follow what steps wake, each by its share (normalised least mean squares): what a request beside
    others counts as, what the likeliest child of a row does, and what its siblings do.
    """

    def __init__(self, form: ExpertForm) -> None:
        self._most = form.count * sum(form.layers)
        self._asleep = 1 - form.chosen / form.count
        self._request = self.child = self.sibling = 1.0
        self.counts = {"plain": ExpertCounts(), "drafted": ExpertCounts()}
        """By kind of step, with drafted nodes and without."""

    @overload
    def independent(self, rows: float) -> float: ...

    @overload
    def independent(self, rows: Floats) -> Floats: ...

    def independent(self, rows: Any) -> Any:
        """Experts awake on average, over all layers, of so many rows that choose independently."""
        return self._most * (1 - self._asleep**rows)

    def observe(self, requests: int, nodes: int, trees: Sequence[TokenTree], awake: int) -> float:
        """Take in a step of some requests, each with one row, and `nodes` nodes, those of `trees` as far as they are
        known; returns how many independent nodes its nodes count as.
        """
        counts = self.counts["drafted" if nodes else "plain"]
        counts.rows += requests + nodes
        counts.awake += awake
        counts.independent += self.independent(requests + nodes)
        children = sum(len(set(tree.parents)) for tree in trees)
        siblings = sum(len(tree.parents) for tree in trees) - children
        if children + siblings == nodes and 0 < awake < _TELLING * self._most:
            self._learn((requests - 1, children, siblings), log(1 - awake / self._most) / log(self._asleep) - 1)
        known = children + siblings
        return nodes * (children * self.child + siblings * self.sibling) / known if known else float(nodes)

    def of_level(self, nodes: float) -> float:
        """What so many nodes of one level count as, of which the first is its parent's likeliest child."""
        return min(nodes, 1.0) * self.child + max(nodes - 1.0, 0.0) * self.sibling

    def of_nodes(self, trees: Sequence[TokenTree], order: NDArray[np.int64]) -> Floats:
        """What each of all trees' nodes, taken in this order, counts as: siblings come after the first of them."""
        parents: list[int] = []
        for number, tree in enumerate(trees):
            first = len(parents)
            parents += (first + parent if parent >= 0 else -1 - number for parent in tree.parents)
        counts = np.full(len(parents), self.sibling)
        counts[np.unique(np.array(parents)[order], return_index=True)[1]] = self.child
        return counts

    def _learn(self, parts: tuple[int, int, int], rows: float) -> None:
        size = sum(part * part for part in parts)
        if not size:
            return
        known = self._request, self.child, self.sibling
        step = _STEP * (rows - sum(part * count for part, count in zip(parts, known, strict=True))) / size
        self._request, self.child, self.sibling = (
            min(max(count + step * part, _LEAST), _MOST) for part, count in zip(parts, known, strict=True)
        )
