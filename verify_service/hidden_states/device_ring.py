"""A ring in the GPU's memory through which one drafter gets hidden states: who wrote where, and what may be reused."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from slipstream_kernels.ipc.byte_ring import RingError
from slipstream_kernels.ipc.device_memory import DATA_OFFSET

if TYPE_CHECKING:
    import torch

    from slipstream_kernels.ipc.device_memory import DeviceBlock

_ALIGNMENT = 256


class SlotKey(Protocol):
    """What a slot holds, as far as a ring has to know: whose states, and at which boundaries."""

    @property
    def generation(self) -> int:
        """One for each request that the slot has held."""
        ...

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Those whose states its drafter wants."""
        ...


@dataclass(slots=True, eq=False)
class RingReservation:
    """Bytes of a ring up to `end`: in use while `queued` records name them, and until `message`, which had the last."""

    end: int
    queued: int = 0
    message: int = 0

    def written(self, message: int) -> None:
        """One of the records has gone out in the message of this number."""
        self.queued -= 1
        self.message = message


@dataclass(slots=True, eq=False, weakref_slot=True)
class RingSlice:
    """Room for the states of positions of one slot's request, from `first` on, which a step fills.

    Lives as long as the step that may write there, and the rows that it has computed.
    """

    slot: SlotKey
    generation: int
    boundaries: tuple[int, ...]
    first: int
    count: int
    position: int
    """Bytes that the ring had room for before"""
    row_bytes: int
    target: torch.Tensor
    """bfloat16 [any], all of the ring's data"""
    place: int
    """of the first number in `target`"""
    room: RingReservation

    def serves(self, slot: SlotKey) -> bool:
        """Whether it was made for what a slot holds."""
        return self.slot is slot and self.generation == slot.generation and self.boundaries == slot.boundaries

    def rows(self, first: int, end: int) -> DeviceRows:
        """What the drafter is told of the positions `first` to `end` - 1."""
        assert self.first <= first <= end <= self.first + self.count
        return DeviceRows(self.position + (first - self.first) * self.row_bytes, end - first, self.row_bytes, self.room)


class DeviceRing:
    """One attachment's ring. All positions count bytes from the attachment's beginning. The link's lock guards it.

    Nothing that the drafter does to the memory matters here: it is written by steps alone and never read.
    """

    def __init__(self, block: DeviceBlock, nonce: bytes) -> None:
        """`block` is empty and nobody else uses it."""
        self.block = block
        self.nonce = nonce
        self.over = False
        """Whether the attachment has ended: nothing is reserved any more."""
        self._target = block.numbers()
        self._capacity = block.size - DATA_OFFSET
        self._written = self._released = self._tail = 0
        self._rooms: deque[tuple[RingReservation, weakref.ref[RingSlice]]] = deque()

    @property
    def quiet(self) -> bool:
        """Whether no step may still write here."""
        return all(span() is None for _, span in self._rooms)

    @property
    def released(self) -> int:
        """How many messages the drafter has copied the states of."""
        return self._released

    @property
    def written(self) -> int:
        """Bytes that steps had room for so far."""
        return self._written

    def release(self, messages: int, written: int) -> None:
        """The drafter claims to need nothing that so many messages name, of those `written`. RingError if it cannot."""
        if not self._released <= messages <= written:
            raise RingError(f"states of {messages} messages are released of {written}, {self._released} before")
        self._released = messages

    def reserve(self, slot: SlotKey, first: int, count: int, hidden_size: int) -> RingSlice | None:
        """Room for states of a slot's positions; None while the drafter has not released enough."""
        row_bytes = 2 * len(slot.boundaries) * hidden_size
        size = -(-count * row_bytes // _ALIGNMENT) * _ALIGNMENT
        start = self._written
        if start % self._capacity + size > self._capacity:
            start += self._capacity - start % self._capacity
        if start + size - self._oldest() > self._capacity:
            return None
        self._written = start + size
        room = RingReservation(self._written)
        place = start % self._capacity // 2
        span = RingSlice(
            slot, slot.generation, slot.boundaries, first, count, start, row_bytes, self._target, place, room
        )
        self._rooms.append((room, weakref.ref(span)))
        return span

    def _oldest(self) -> int:
        """The position from which on the ring is in use."""
        while self._rooms:
            room, span = self._rooms[0]
            if span() is not None or room.queued or room.message > self._released:
                return self._tail
            self._tail = room.end
            self._rooms.popleft()
        self._tail = self._written
        return self._tail


class DeviceRows(NamedTuple):
    """Rows of states in an attachment's device ring, `position` bytes after its beginning, and the room they are in."""

    position: int
    rows: int
    row_bytes: int
    room: RingReservation
