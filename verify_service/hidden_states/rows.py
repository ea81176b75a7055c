"""Hidden states of a request's positions, on their way from a step to whoever asked for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from slipstream_kernels.models.capture_layers import Bits

if TYPE_CHECKING:
    from verify_service.hidden_states.device_ring import RingSlice, SlotKey


@dataclass(frozen=True, slots=True, eq=False)
class PendingRows:
    """Some rows of a step's, which may be on their way to the host until `load` returns all of them."""

    load: Callable[[], Bits]
    places: range | list[int]
    width: int

    def __len__(self) -> int:
        return len(self.places)

    def of(self, first: int, end: int) -> PendingRows:
        """Those of some of its rows."""
        return PendingRows(self.load, self.places[first:end], self.width)

    def bits(self) -> Bits:
        """The rows themselves; waits for them."""
        rows, places = self.load(), self.places
        return rows[places.start : places.stop] if isinstance(places, range) else rows[places]


class HiddenStateRows:
    """States of the positions from `first` on, one a row; that of position p predicted token p + 1.

    `rows` are bits of bfloat16 [positions, boundaries * hidden_size], the states at `boundaries` side by side in their
    order. The memory may be a step's, which later steps use again: whoever keeps rows takes a copy by `at`. `spans` say
    where the device's memory has them, from where some drafters take them; `copied` waits until it does.
    """

    __slots__ = ("_copied", "_count", "_rows", "boundaries", "first", "spans")

    def __init__(
        self,
        boundaries: tuple[int, ...],
        first: int,
        rows: Bits | PendingRows,
        spans: tuple[RingSlice, ...] = (),
        copied: Callable[[], None] | None = None,
    ) -> None:
        self.boundaries = boundaries
        self.first = first
        self.spans = spans
        self._copied = copied
        self._rows = rows
        self._count = len(rows)

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> Bits:
        """All of them; waits where they are on their way."""
        if isinstance(self._rows, PendingRows):
            self._rows = self._rows.bits()
        return self._rows

    def located(self) -> tuple[Bits, range | list[int]]:
        """An array of rows, perhaps a step's with those of others, and which of its rows these are; waits as `rows`."""
        if isinstance(self._rows, PendingRows):
            return self._rows.load(), self._rows.places
        return self._rows, range(self._count)

    @property
    def hidden_size(self) -> int:
        """Columns of a state."""
        width = self._rows.width if isinstance(self._rows, PendingRows) else self._rows.shape[1]
        return width // len(self.boundaries)

    @property
    def end(self) -> int:
        """The position behind the last one."""
        return self.first + self._count

    def of(self, first: int, end: int) -> HiddenStateRows:
        """Those of some of its positions."""
        assert self.first <= first <= end <= self.end
        low, high = first - self.first, end - self.first
        rows = self._rows.of(low, high) if isinstance(self._rows, PendingRows) else self._rows[low:high]
        return HiddenStateRows(self.boundaries, first, rows, self.spans, self._copied)

    def has(self, boundaries: Sequence[int]) -> bool:
        """Whether all these boundaries were captured."""
        return all(boundary in self.boundaries for boundary in boundaries)

    def at(self, boundaries: Sequence[int]) -> Bits:
        """The states at some of its boundaries, in the order given: contiguous [positions, columns], a copy."""
        rows = self.rows
        if tuple(boundaries) == self.boundaries:
            return rows.copy()
        columns = [self.boundaries.index(boundary) for boundary in boundaries]
        by_boundary = rows.reshape(len(rows), len(self.boundaries), -1)
        return np.ascontiguousarray(by_boundary[:, columns]).reshape(len(rows), -1)

    def span_of(self, slot: SlotKey) -> RingSlice | None:
        """Where the drafter that has a slot may take them from the device's memory; None if it has to be sent them.

        Waits until they are there.
        """
        for span in self.spans:
            if span.serves(slot):
                if self._copied is not None:
                    self._copied()
                return span
        return None


class HiddenStateHistory(Protocol):
    """What is stored of one request's states. For the loop's thread, while the request is in a step or begins."""

    def reach(self, end: int) -> int:
        """The first of the positions from which on all states before `end` are kept; `end` where none is."""
        ...

    def read(self, first: int, end: int) -> HiddenStateRows | None:
        """Those of the positions `first` to `end` - 1, without what lies before a hole; None if the last is gone."""
        ...
