"""The part of a pass's plan that has the trees which the device chooses from, behind all other words of the plan."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Generic, TypeVar

import numpy as np

from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.models.gpu.batch.buckets import Bucket
from slipstream_kernels.models.gpu.batch.pass_plan import CHOICE, Int32, PassPlan
from slipstream_kernels.ops.gpu.outcome_select import MOST_ENTRIES

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class OutcomeArrays(Generic[A]):
    """As `select_outcomes` reads them, int32; padding has no rows."""

    choices: A
    entries: A
    nodes: A


def may_select(bucket: Bucket) -> bool:
    """Whether passes of a bucket may have choices."""
    return bucket.has_trees


class OutcomeLayout:
    """Where the arrays lie in the plan of a bucket's passes, from word `first` on."""

    def __init__(self, bucket: Bucket, most_running: int, segment_rows: int, first: int) -> None:
        requests = min(bucket.rows, most_running)
        self._shapes = {
            "choices": (requests, CHOICE),
            "entries": (MOST_ENTRIES * requests, 4),
            "nodes": (MOST_ENTRIES * bucket.rows, 4),  # no tree has more nodes than its request has rows
        }
        self.segment_rows = segment_rows
        self.first = first
        sizes = [prod(shape) for shape in self._shapes.values()]
        starts = [first, first + sizes[0], first + sizes[0] + sizes[1]]
        self.end = first + sum(sizes)
        self._places = np.array([starts, sizes], np.int32).T.copy()

    def views(self, block: Any) -> OutcomeArrays[Any]:
        """The arrays within a block of at least `end` words, a tensor or a numpy array."""
        views: dict[str, Any] = {}
        end = self.first
        for name, shape in self._shapes.items():
            start, end = end, end + prod(shape)
            views[name] = block[start:end].reshape(shape)
        return OutcomeArrays(**views)

    def pack(self, plan: PassPlan, words: Int32) -> None:
        """Fill the arrays, which lie in `words`. Raises ValueError for a plan that is larger than the bucket."""
        tables = plan.choices, plan.entries, plan.entry_nodes
        for values, (room, _) in zip(tables, self._shapes.values(), strict=True):
            if len(values) > room:
                raise ValueError(f"{len(values)} requests, trees or nodes to choose from, there is room for {room}")
        pack_outcomes(plan.decodes, self.segment_rows, *tables, self._places, words)


@kernel
def pack_outcomes(
    decodes: Int32, segment_rows: int, choices: Int32, entries: Int32, nodes: Int32, places: Int32, words: Int32
) -> None:
    """Write the arrays into `words`; the last column of `choices` [any, 8] is the first segment of its item's rows.

    `places` [3, 2]: first word and number of words of each array. Choices without a request have no rows; behind the
    last entry and the last node words stay as they are.
    """
    target = words[places[0, 0] : places[0, 0] + places[0, 1]].reshape(-1, choices.shape[1])
    firsts = np.zeros(len(decodes) + 1, np.int32)
    for item in range(len(decodes)):
        firsts[item + 1] = firsts[item] + (decodes[item, 1] + segment_rows - 1) // segment_rows
    for choice in range(len(choices)):
        target[choice] = choices[choice]
        target[choice, -1] = firsts[choices[choice, 0]]
    target[len(choices) :] = 0
    for field, values in ((1, entries), (2, nodes)):
        words[places[field, 0] : places[field, 0] + values.size] = values.reshape(-1)
