"""What compiled loops over a step's trees learn and say is what cells of `calibration` do, one at a time."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slipstream_kernels import acceptance_cells as cells
from slipstream_kernels.calibration import LEAST, Cell
from slipstream_kernels.token_tree import TokenTree

Judged = tuple[TokenTree, int, tuple[int, ...]]
"""A tree, how many tokens the one before was right for, and the nodes that were right."""


@st.composite
def judged(draw: st.DrawFn) -> Judged:
    size = draw(st.integers(0, 12))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
    logs = draw(st.none() | st.lists(st.floats(-30, 5), min_size=size, max_size=size).map(tuple))
    tree = TokenTree(tuple(range(size)), parents, logs)
    right = tree.path(draw(st.integers(-1, size - 1)))
    return tree, draw(st.integers(0, 9)), right


class Reference:
    """Cells by their names."""

    def __init__(self) -> None:
        self.cells: dict[tuple[int, ...], Cell] = {}

    def places(self, tree: TokenTree, length: int, node: int) -> list[tuple[int, ...]]:
        parent = tree.parents[node]
        if tree.log_probs is None:
            place = len(cells.EDGES) + 1 + min(2, tree.children(parent).index(node))
        else:
            above = 0.0 if parent < 0 else tree.log_probs[parent]
            place = bisect_right(list(cells.EDGES), tree.log_probs[node] - above)
        depth = min(tree.depths[node], cells.DEPTHS)
        return [(place,), (place, depth), (place, depth, min(length, cells.LENGTHS - 1))]

    def observe(self, tree: TokenTree, length: int, right: tuple[int, ...]) -> None:
        for node, parent in enumerate(tree.parents):
            if parent in {-1, *right}:
                for name in self.places(tree, length, node):
                    self.cells.setdefault(name, Cell()).observe(node in right)

    def chances(self, tree: TokenTree, length: int) -> list[float]:
        chances: list[float] = []
        for node, parent in enumerate(tree.parents):
            names = self.places(tree, length, node)
            prior = float(cells.PRIORS[names[0][0]])
            for name in names:
                prior = self.cells.get(name, Cell()).estimate(prior)
            chances.append(min(max(prior, LEAST), 0.98) * (chances[parent] if parent >= 0 else 1.0))
        return chances


def flat(trees: list[Judged]) -> tuple[np.ndarray, ...]:
    parents = [parent for tree, _, _ in trees for parent in tree.parents]
    logs = [log for tree, _, _ in trees for log in tree.log_probs or (0.0,) * len(tree)]
    ends = np.cumsum([len(tree) for tree, _, _ in trees], dtype=np.int64)
    known = np.array([tree.log_probs is not None for tree, _, _ in trees], np.bool_)
    lengths = np.array([length for _, length, _ in trees], np.int64)
    return ends, np.array(parents, np.int64), np.array(logs, np.float64), known, lengths


@given(st.lists(st.lists(judged(), min_size=1, max_size=5), min_size=1, max_size=4))
def test_the_loops_do_what_cells_do_one_at_a_time(steps: list[list[Judged]]) -> None:
    reference = Reference()
    hits, trials, changed = np.zeros(cells.CELLS), np.zeros(cells.CELLS), np.ones(cells.BINS, np.bool_)
    estimates = np.zeros(cells.ESTIMATES)
    for step in steps:
        expected = [chance for tree, length, _ in step for chance in reference.chances(tree, length)]
        cells.estimate_cells(hits, trials, changed, estimates)
        assert not changed.any()
        chances = np.empty(len(expected))
        tables = np.zeros(len(step), np.int64)
        cells.path_chances(*flat(step), tables, estimates[None], chances)
        assert chances.tolist() == expected
        for tree, length, right in step:
            reference.observe(tree, length, right)
        ends = np.cumsum([len(right) for _, _, right in step], dtype=np.int64)
        nodes = np.array([node for _, _, right in step for node in right], np.int64)
        cells.observe_trees(*flat(step), ends, nodes, hits, trials, changed)
