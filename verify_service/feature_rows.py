"""Hidden states of a request's positions, on their way from a step to whoever asked for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from slipstream_kernels.models.boundaries import Bits


@dataclass(frozen=True, slots=True, eq=False)
class FeatureRows:
    """States of the positions from `first` on, one a row; that of position p predicted token p + 1.

    `rows` are bits of bfloat16 [positions, boundaries * hidden_size], the states at `boundaries` side by side in their
    order. The memory may be a step's, which later steps use again: whoever keeps rows takes a copy by `at`.
    """

    boundaries: tuple[int, ...]
    first: int
    rows: Bits

    @property
    def end(self) -> int:
        """The position behind the last one."""
        return self.first + len(self.rows)

    def of(self, first: int, end: int) -> FeatureRows:
        """Those of some of its positions."""
        assert self.first <= first <= end <= self.end
        return FeatureRows(self.boundaries, first, self.rows[first - self.first : end - self.first])

    def has(self, boundaries: Sequence[int]) -> bool:
        """Whether all these boundaries were captured."""
        return all(boundary in self.boundaries for boundary in boundaries)

    def at(self, boundaries: Sequence[int]) -> Bits:
        """The states at some of its boundaries, in the order given: contiguous [positions, columns], a copy."""
        if tuple(boundaries) == self.boundaries:
            return self.rows.copy()
        columns = [self.boundaries.index(boundary) for boundary in boundaries]
        by_boundary = self.rows.reshape(len(self.rows), len(self.boundaries), -1)
        return np.ascontiguousarray(by_boundary[:, columns]).reshape(len(self.rows), -1)


class FeatureHistory(Protocol):
    """What is stored of one request's states. For the loop's thread, while the request is in a step or begins."""

    def reach(self, end: int) -> int:
        """The first of the positions from which on all states before `end` are kept; `end` where none is."""
        ...

    def read(self, first: int, end: int) -> FeatureRows | None:
        """Those of the positions `first` to `end` - 1, without what lies before a hole; None if the last is gone."""
        ...
