"""The calibration of all nodes of a step's trees in one compiled call: the cells of `calibration` as dense arrays.

A node's cells are, ever finer: the range of the proposer's own probability, or the node's rank among its siblings where
it gives none; that range at its depth; and both for how many tokens the request's last tree was right for. They lie in
one row, `CELLS` of them: [BINS], then [DEPTHS, BINS], then [LENGTHS, DEPTHS, BINS].

Trees lie end to end: `ends` int64 [trees] is where each one's nodes end in `parents` int64 [nodes], -1 for a child of
the root, and `logs` float64 [nodes], of paths. `has_logs` bool [trees] says which trees have any. `lengths` int64
[trees] is how many tokens the request's last tree was right for.
"""

from __future__ import annotations

from math import log, prod
from typing import Final

import numpy as np
import numpy.typing as npt

from slipstream_kernels.calibration import LEAST, MEMORY, PROB_EDGES, WEIGHT
from slipstream_kernels.jit.compiler import kernel

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

EDGES: Floats = np.array([log(edge) for edge in PROB_EDGES])
PRIORS: Floats = np.array(
    (0.01, 0.035, 0.075, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.93, 0.975, 0.99, 0.6, 0.15, 0.05)
)
"""Of the ranges between the edges, then of the first, second and further siblings without a probability."""
LENGTHS: Final = 4
DEPTHS: Final = 8
BINS: Final = len(PRIORS)
CELLS: Final = prod((BINS,)) + prod((DEPTHS, BINS)) + prod((LENGTHS, DEPTHS, BINS))
ESTIMATES: Final = LENGTHS * DEPTHS * BINS
_MOST: Final = 0.98
_MIDDLE: Final = BINS
_FINE: Final = BINS + DEPTHS * BINS
_FIRST_RANK: Final = len(EDGES) + 1


@kernel
def observe_trees(
    ends: Ints,
    parents: Ints,
    logs: Floats,
    has_logs: Bools,
    lengths: Ints,
    right_ends: Ints,
    right: Ints,
    hits: Floats,
    trials: Floats,
    changed: Bools,
) -> None:
    """Take in verified trees, one after the other, in the order of their nodes.

    `right` [any], of each tree up to `right_ends` [trees], are the nodes that were right: a path from the root's child
    down. `hits` and `trials` [CELLS] grow as `calibration.Cell` has it; `changed` [BINS] gets the ranges they are of.
    """
    first = 0
    judged = 0
    for tree in range(len(ends)):
        nodes = ends[tree] - first
        is_right = np.zeros(nodes + 1, np.bool_)  # by node + 1; the root is 0
        is_right[0] = True
        for at in range(judged, right_ends[tree]):
            is_right[right[at] + 1] = True
        judged = right_ends[tree]
        ranks = np.zeros(nodes + 1, np.int64)
        depths = np.zeros(nodes + 1, np.int64)
        for node in range(nodes):
            above = parents[first + node] + 1
            depths[node + 1] = depths[above] + 1
            if not is_right[above]:
                continue
            place = _bin(logs, first, node, above, has_logs[tree], ranks[above])
            ranks[above] += 1
            finer = (min(depths[node + 1], DEPTHS) - 1) * BINS + place
            fine = _FINE + min(lengths[tree], LENGTHS - 1) * DEPTHS * BINS + finer
            hit = 1.0 if is_right[node + 1] else 0.0
            for cell in (place, _MIDDLE + finer, fine):
                hits[cell] += hit - hits[cell] / MEMORY
                trials[cell] += 1.0 - trials[cell] / MEMORY
            changed[place] = True
        first = ends[tree]


@kernel
def estimate_cells(hits: Floats, trials: Floats, changed: Bools, estimates: Floats) -> None:
    """Bring `estimates` [ESTIMATES], of the finest cells, up to date in the ranges `changed`, which are cleared."""
    for place in range(BINS):
        if not changed[place]:
            continue
        changed[place] = False
        of_bin = _estimate(hits, trials, place, PRIORS[place])
        for at in range(place, DEPTHS * BINS, BINS):
            of_depth = _estimate(hits, trials, _MIDDLE + at, of_bin)
            for cell in range(at, ESTIMATES, DEPTHS * BINS):
                estimates[cell] = min(max(_estimate(hits, trials, _FINE + cell, of_depth), LEAST), _MOST)


@kernel
def path_chances(
    ends: Ints,
    parents: Ints,
    logs: Floats,
    has_logs: Bools,
    lengths: Ints,
    tables: Ints,
    estimates: Floats,
    chances: Floats,
) -> None:
    """Write each node's chance to be output to `chances` [nodes]; `tables` [trees] are rows of `estimates` [any, ...].

    No chance is above that of the node's parent.
    """
    first = 0
    for tree in range(len(ends)):
        nodes = ends[tree] - first
        ranks = np.zeros(nodes + 1, np.int64)
        depths = np.zeros(nodes + 1, np.int64)
        start = min(lengths[tree], LENGTHS - 1) * DEPTHS * BINS
        for node in range(nodes):
            above = parents[first + node] + 1
            depths[node + 1] = depths[above] + 1
            place = _bin(logs, first, node, above, has_logs[tree], ranks[above])
            ranks[above] += 1
            cell = start + (min(depths[node + 1], DEPTHS) - 1) * BINS + place
            of_parent = chances[first + above - 1] if above > 0 else 1.0
            chances[first + node] = estimates[tables[tree], cell] * of_parent
        first = ends[tree]


@kernel
def _bin(logs: Floats, first: int, node: int, above: int, has_logs: bool, rank: int) -> int:
    """The range of a node below `above`, its parent + 1, which has had `rank` children before it."""
    if not has_logs:
        return _FIRST_RANK + min(2, rank)
    own = logs[first + node] - (logs[first + above - 1] if above > 0 else 0.0)
    place = 0
    while place < len(EDGES) and not own < EDGES[place]:
        place += 1
    return place


@kernel
def _estimate(hits: Floats, trials: Floats, cell: int, prior: float) -> float:
    estimate: float = (hits[cell] + WEIGHT * prior) / (trials[cell] + WEIGHT)
    return estimate
