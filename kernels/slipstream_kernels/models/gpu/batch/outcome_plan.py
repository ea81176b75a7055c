"""The part of a pass's plan that has the trees which the device chooses from, behind all other words of the plan."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Generic, TypeVar

import numpy as np

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
        self.end = first + sum(map(prod, self._shapes.values()))

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
        arrays = self.views(words)
        segments = -(-plan.decodes[:, 1] // self.segment_rows)
        choices = plan.choices.copy()
        choices[:, -1] = (np.cumsum(segments) - segments)[choices[:, 0]]
        arrays.choices[len(choices) :] = 0
        for values, target in (
            (choices, arrays.choices), (plan.entries, arrays.entries), (plan.entry_nodes, arrays.nodes)
        ):  # fmt: skip
            if len(values) > len(target):
                raise ValueError(
                    f"{len(values)} requests, trees or nodes to choose from, there is room for {len(target)}"
                )
            target[: len(values)] = values
