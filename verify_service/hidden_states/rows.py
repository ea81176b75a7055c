"""Hidden states of a request's positions, on their way from a step to whoever asked for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from slipstream_kernels.models.capture_layers import Bits

if TYPE_CHECKING:
    from verify_service.hidden_states.device_ring import RingConsumer, RingSlice


@dataclass(slots=True, eq=False)
class PendingRows:
    """Some rows of a step's states, which may be in flight to the host until `load` returns all of them."""

    load: Callable[[], Bits]
    row_indices: range | list[int]
    width: int

    def __len__(self) -> int:
        return len(self.row_indices)

    def slice(self, first: int, end: int) -> PendingRows:
        """Return the rows `first` to `end` - 1 of these."""
        return PendingRows(self.load, self.row_indices[first:end], self.width)

    def bits(self) -> Bits:
        """Return the rows; wait for them."""
        rows, indices = self.load(), self.row_indices
        return rows[indices.start : indices.stop] if isinstance(indices, range) else rows[indices]


class HiddenStateRows:
    """States of the positions from `first` on, one a row; that of position p predicted token p + 1.

    `rows` are bits of bfloat16 [positions, boundaries * hidden_size], the states at `boundaries` side by side in order.
    The memory may be a step's, which later steps reuse: copy rows that are kept with `select`.
    `ring_slices` are the same rows in device rings, for drafters that read them there; `copied` waits until they are.
    `end` is the position behind the last one.
    """

    __slots__ = ("_copied", "_count", "_rows", "boundaries", "end", "first", "ring_slices")

    def __init__(
        self,
        boundaries: tuple[int, ...],
        first: int,
        rows: Bits | PendingRows,
        ring_slices: tuple[RingSlice, ...] = (),
        copied: Callable[[], None] | None = None,
    ) -> None:
        self.boundaries = boundaries
        self.first = first
        self.ring_slices = ring_slices
        self._copied = copied
        self._rows = rows
        self._count = len(rows)
        self.end = first + self._count

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> Bits:
        """All rows; waits while they are in flight."""
        if isinstance(self._rows, PendingRows):
            self._rows = self._rows.bits()
        return self._rows

    def located(self) -> tuple[Bits, range | list[int]]:
        """An array of rows, perhaps a step's with those of others, and which of its rows these are; waits as `rows`."""
        if isinstance(self._rows, PendingRows):
            return self._rows.load(), self._rows.row_indices
        return self._rows, range(self._count)

    @property
    def hidden_size(self) -> int:
        """Columns of a state."""
        width = self._rows.width if isinstance(self._rows, PendingRows) else self._rows.shape[1]
        return width // len(self.boundaries)

    def slice(self, first: int, end: int) -> HiddenStateRows:
        """Return the rows of positions `first` to `end` - 1, without a copy; these themselves where that is all."""
        assert self.first <= first <= end <= self.end
        if end - first == self._count:
            return self
        low, high = first - self.first, end - self.first
        rows = self._rows.slice(low, high) if isinstance(self._rows, PendingRows) else self._rows[low:high]
        return HiddenStateRows(self.boundaries, first, rows, self.ring_slices, self._copied)

    def has(self, boundaries: Sequence[int]) -> bool:
        """Whether all these boundaries were captured."""
        return boundaries == self.boundaries or all(boundary in self.boundaries for boundary in boundaries)

    def select(self, boundaries: Sequence[int]) -> Bits:
        """Return a contiguous copy [positions, columns] of the states at these boundaries, in the order given."""
        rows = self.rows
        if tuple(boundaries) == self.boundaries:
            return rows.copy()
        columns = [self.boundaries.index(boundary) for boundary in boundaries]
        by_boundary = rows.reshape(len(rows), len(self.boundaries), -1)
        return np.ascontiguousarray(by_boundary[:, columns]).reshape(len(rows), -1)

    def ring_slice_for(self, reader: RingConsumer) -> RingSlice | None:
        """Return the ring slice reserved for `reader`, once the rows are there; None if they have to be sent."""
        for ring_slice in self.ring_slices:
            if ring_slice.serves(reader):
                if self._copied is not None:
                    self._copied()
                return ring_slice
        return None


class HiddenStateHistory(Protocol):
    """What is stored of one request's states. For the loop's thread, while the request is in a step or begins."""

    def reach(self, end: int) -> int:
        """The first of the positions from which on all states before `end` are kept; `end` where none is."""
        ...

    def read(self, first: int, end: int) -> HiddenStateRows | None:
        """Those of the positions `first` to `end` - 1, without what lies before a hole; None if the last is gone."""
        ...
