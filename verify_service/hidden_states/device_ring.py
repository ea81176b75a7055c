"""A ring in GPU memory through which one drafter reads hidden states: reservations of steps, and their release."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from slipstream_kernels.draft_protocol.records import DeviceRows
from slipstream_kernels.ipc.byte_ring import RingError
from slipstream_kernels.ipc.device_memory import DATA_OFFSET

if TYPE_CHECKING:
    import torch

    from slipstream_kernels.ipc.device_memory import DeviceBlock

_ALIGNMENT = 256


class RingConsumer(Protocol):
    """Who reads the states of one request from a ring; another request has another reader."""

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Boundaries whose states are read."""
        ...


@dataclass(slots=True, eq=False)
class RingReservation:
    """Bytes of a ring that end at `end`: in use while `queued` records name them, then until `message` is released."""

    end: int
    queued: int = 0
    message: int = 0

    def on_sent(self, message: int) -> None:
        """Note that one of the records was sent in the message of this number."""
        self.queued -= 1
        self.message = message


@dataclass(slots=True, eq=False, weakref_slot=True)
class RingSlice:
    """Reserved rows for the hidden states of `count` positions of a request from `first` on; a step fills them.

    A step that may write there, and the rows that it has computed, keep the object alive: while it lives its bytes are
    not reused.
    """

    reader: RingConsumer
    boundaries: tuple[int, ...]
    first: int
    """The least that it can be while the step before is not decided which tells how far the request has come."""
    count: int
    position: int
    """Bytes from the attachment's beginning to the first row."""
    row_bytes: int
    target: torch.Tensor
    """bfloat16 [capacity // 2], all of the ring's data."""
    offset: int
    """Index in `target` of the first row's first number."""
    reservation: RingReservation

    def resolve(self, accepted: int) -> None:
        """Take in that so many drafted tokens were accepted in the step before."""
        self.first += accepted

    def serves(self, reader: RingConsumer) -> bool:
        """Return whether it was reserved for this reader."""
        return self.reader is reader

    def rows(self, first: int, end: int) -> DeviceRows:
        """Return the rows of positions `first` to `end` - 1, as a record names them."""
        assert self.first <= first <= end <= self.first + self.count
        return DeviceRows(
            self.position + (first - self.first) * self.row_bytes, end - first, self.row_bytes, self.reservation
        )


class DeviceRing:
    """One attachment's ring in device memory; the link's lock guards it.

    Positions count bytes from the attachment's beginning; byte p lies at p % capacity of the ring's data.
    `reserve` appends a reservation, `_oldest` drops those at the front that are not in use any more:

        |-- reused --|-- released --|-- sent, not released --|-- queued --|-- steps write --|-- free --|
        0          _tail                                                                 _written    _tail + capacity

    A reservation is never split: one that would cross the end of the ring's data begins at its start.
    This process writes the memory and never reads it, so that nothing a drafter writes there matters.
    """

    def __init__(self, block: DeviceBlock, nonce: bytes) -> None:
        """`block` is empty and nobody else uses it."""
        self.block = block
        self.nonce = nonce
        self.closed = False
        """Whether the attachment has ended, so that nothing is reserved any more."""
        self._target = block.numbers()
        self._capacity = block.size - DATA_OFFSET
        self._written = self._released = self._tail = 0
        self._reservations: deque[tuple[RingReservation, weakref.ref[RingSlice]]] = deque()

    @property
    def idle(self) -> bool:
        """Whether its attachment is over, and no step may still write here."""
        return self.closed and all(ring_slice() is None for _, ring_slice in self._reservations)

    @property
    def released(self) -> int:
        """Messages whose hidden states the drafter has copied."""
        return self._released

    @property
    def written(self) -> int:
        """Bytes that were reserved so far, with what was skipped at the end of the ring's data."""
        return self._written

    def release(self, messages: int, written: int) -> None:
        """Note that the drafter has copied the rows of `messages` of `written` messages. RingError if it cannot."""
        if not self._released <= messages <= written:
            raise RingError(f"states of {messages} messages are released of {written}, {self._released} before")
        self._released = messages

    def reserve(self, reader: RingConsumer, first: int, count: int, hidden_size: int) -> RingSlice | None:
        """Reserve rows for `count` positions from `first` on; None while the drafter has not released enough.

        What is not in use any more is looked for only where the room that is known does not do.
        """
        row_bytes = 2 * len(reader.boundaries) * hidden_size
        size = -(-count * row_bytes // _ALIGNMENT) * _ALIGNMENT
        start = self._written
        if start % self._capacity + size > self._capacity:
            start += self._capacity - start % self._capacity
        if start + size - self._tail > self._capacity and start + size - self._oldest() > self._capacity:
            return None
        self._written = start + size
        reservation = RingReservation(self._written)
        offset = start % self._capacity // 2
        ring_slice = RingSlice(
            reader, reader.boundaries, first, count, start, row_bytes, self._target, offset, reservation
        )
        self._reservations.append((reservation, weakref.ref(ring_slice)))
        return ring_slice

    def _oldest(self) -> int:
        """Drop reservations that are not in use any more, and return the position that the ring is in use from."""
        while self._reservations:
            reservation, ring_slice = self._reservations[0]
            if ring_slice() is not None or reservation.queued or reservation.message > self._released:
                return self._tail
            self._tail = reservation.end
            self._reservations.popleft()
        self._tail = self._written
        return self._tail
