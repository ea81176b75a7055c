"""The part of a pass's plan that the device settles its rows by, behind all other words of the plan."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Generic, TypeVar

import numpy as np

from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.models.gpu.batch.buckets import Bucket
from slipstream_kernels.models.gpu.batch.pass_plan import CHOICE, Int32, PassPlan

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class OutcomeArrays(Generic[A]):
    """As `select_outcomes` reads them, int32; padding has no rows. `nodes` are room for what `hand_trees` writes."""

    choices: A
    nodes: A


def may_select(bucket: Bucket) -> bool:
    """Whether passes of a bucket may have choices."""
    return bucket.has_trees


class OutcomeLayout:
    """Where the arrays lie in the plan of a bucket's passes, from word `first` on."""

    def __init__(self, bucket: Bucket, most_running: int, segment_rows: int, first: int) -> None:
        self._shapes = {
            "choices": (min(bucket.rows, most_running), CHOICE),
            "nodes": (bucket.rows, 4),  # all trees together have fewer nodes than the pass has rows
        }
        self.segment_rows = segment_rows
        self.first = first
        self.sent_end = first + prod(self._shapes["choices"])
        """Behind the words that the host writes."""
        self.end = self.sent_end + prod(self._shapes["nodes"])

    def views(self, block: Any) -> OutcomeArrays[Any]:
        """The arrays within a block of at least `end` words, a tensor or a numpy array."""
        views: dict[str, Any] = {}
        end = self.first
        for name, shape in self._shapes.items():
            start, end = end, end + prod(shape)
            views[name] = block[start:end].reshape(shape)
        return OutcomeArrays(**views)

    def pack(self, plan: PassPlan, words: Int32) -> None:
        """Fill the choices, which lie in `words`. Raises ValueError for a plan that is larger than the bucket."""
        room, _ = self._shapes["choices"]
        if len(plan.choices) > room:
            raise ValueError(f"{len(plan.choices)} requests to choose for, there is room for {room}")
        pack_outcomes(plan.decodes, self.segment_rows, plan.choices, words[self.first : self.sent_end])


@kernel
def pack_outcomes(decodes: Int32, segment_rows: int, choices: Int32, words: Int32) -> None:
    """Write the choices into `words`; the last column of `choices` [any, 8] is the first segment of its item's rows.

    Choices without a request have no rows.
    """
    target = words.reshape(-1, choices.shape[1])
    firsts = np.zeros(len(decodes) + 1, np.int32)
    for item in range(len(decodes)):
        firsts[item + 1] = firsts[item] + (decodes[item, 1] + segment_rows - 1) // segment_rows
    for choice in range(len(choices)):
        target[choice] = choices[choice]
        target[choice, -1] = firsts[choices[choice, 0]]
    target[len(choices) :] = 0
