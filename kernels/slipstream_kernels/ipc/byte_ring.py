"""A ring of messages between two processes: one writes, one reads, neither trusts the other or waits for it.

The layout is published in docs/protocol/shared_memory.md. An index counts bytes from the beginning of time, so that
full and empty differ; each side keeps its own index to itself and only shows copies of it.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
import time

from slipstream_kernels.ipc.futex import Futex
from slipstream_kernels.ipc.segment import Segment, SegmentError
from slipstream_kernels.sync.spin_wait import spin_wait

MAGIC = b"SLIPRING"
LAYOUT_VERSION = 1
DATA_OFFSET = 4096
NONCE_BYTES = 16
_HEADER = struct.Struct("<8sIIQ16s")
_WRITTEN_OFFSET, _READ_OFFSET, _MARK_OFFSET = 64, 128, 192
_FRAME = struct.Struct("<II")
_ALIGNMENT = 8
MIN_CAPACITY, MAX_CAPACITY = 1 << 12, 1 << 28
_LOOKS = 200
"""Of a wait, before others get a chance to run: some microseconds."""

_give_way = ctypes.CDLL(None).sched_yield  # unlike os.sched_yield it lets other Python threads run


class RingError(Exception):
    """The peer wrote what no correct peer writes."""


class _Ring:
    """What both ends share: the mapping, its data and the two published indices."""

    __slots__ = ("_bell", "_capacity", "_data", "_fence", "_read", "_segment", "_sequence", "_words", "_written")

    def __init__(self, segment: Segment, capacity: int) -> None:
        view = memoryview(segment.memory)
        self._segment = segment
        self._capacity = capacity
        self._words = view[:DATA_OFFSET].cast("Q")  # aligned: one load or store each
        self._data = view[DATA_OFFSET:]
        self._bell = Futex(ctypes.c_uint32.from_buffer(segment.memory, _WRITTEN_OFFSET))
        self._written = self._read = self._sequence = 0
        self._fence = threading.Lock()
        self._fence.acquire()

    @property
    def segment(self) -> Segment:
        """The memory that the ring lies in."""
        return self._segment

    @property
    def messages(self) -> int:
        """How many this end has written or read."""
        return self._sequence

    @property
    def limit(self) -> int:
        """Payload bytes of the largest message that an empty ring takes."""
        return self._capacity - _FRAME.size

    def _order(self) -> None:
        """No store or load moves across this line: a release followed by an acquire of one lock."""
        self._fence.release()
        self._fence.acquire()

    def ring(self) -> None:
        """Wake whoever waits for this ring, without a message."""
        self._bell.ring()


class RingWriter(_Ring):
    """The writing end. Not thread-safe."""

    __slots__ = ()

    @property
    def room(self) -> int:
        """Payload bytes of the largest message that fits now, negative where none does.

        RingError if the reader's index makes no sense.
        """
        read = self._words[_READ_OFFSET // 8]
        if not self._read <= read <= self._written:
            raise RingError(f"the reader claims {read} bytes of {self._written}, {self._read} before")
        self._read = read
        return self._capacity - (self._written - read) - _FRAME.size

    def write(self, message: bytes) -> bool:
        """Append a message and wake the reader; False if there is no room, and then nothing is written."""
        size = _padded(len(message))
        if size > self.room:
            return False
        self._sequence += 1
        at = self._written % self._capacity
        _FRAME.pack_into(self._data, at, len(message), self._sequence & 0xFFFFFFFF)
        self._put((at + _FRAME.size) % self._capacity, message)
        self._order()
        self._written += _FRAME.size + size
        self._words[_WRITTEN_OFFSET // 8] = self._written
        self._order()
        self._bell.ring()
        return True

    def set_mark(self, value: int) -> None:
        """Show the reader a number beside the messages, of 64 bits."""
        self._words[_MARK_OFFSET // 8] = value

    def _put(self, at: int, message: bytes) -> None:
        first = self._capacity - at
        if len(message) <= first:
            self._data[at : at + len(message)] = message
        else:
            self._data[at:] = message[:first]
            self._data[: len(message) - first] = message[first:]


class RingReader(_Ring):
    """The reading end. Not thread-safe, except that any thread may `wait` or `ring`."""

    __slots__ = ("_address",)

    def __init__(self, segment: Segment, capacity: int) -> None:
        super().__init__(segment, capacity)
        self._address = self._bell.address
        spin_wait(self._address, 0, 0)  # it is compiled now

    @property
    def filled(self) -> bool:
        """Whether the writer claims that there is something to read."""
        return self._words[_WRITTEN_OFFSET // 8] != self._read

    @property
    def mark(self) -> int:
        """The number that the writer shows, 0 at first. It may be anything."""
        return self._words[_MARK_OFFSET // 8]

    @property
    def position(self) -> int:
        """Bytes read since the beginning of time."""
        return self._read

    def read(self, most: int) -> bytes | None:
        """A private copy of the next message, None if there is none.

        RingError if the writer's index, the message's length, which may be `most`, or its number makes no sense.
        """
        written = self._words[_WRITTEN_OFFSET // 8]
        available = written - self._read
        if available == 0:
            return None
        if not _FRAME.size <= available <= self._capacity or written < self._written:
            raise RingError(f"the writer claims {written} bytes, {self._read} of them read")
        self._written = written
        self._order()
        at = self._read % self._capacity
        length, sequence = _FRAME.unpack(bytes(self._data[at : at + _FRAME.size]))
        expected = (self._sequence + 1) & 0xFFFFFFFF
        if sequence != expected or length > most or _FRAME.size + _padded(length) > available:
            raise RingError(f"message {sequence} of {length} bytes where {expected} was to come, {available} are there")
        message = self._take((at + _FRAME.size) % self._capacity, length)
        self._sequence += 1
        self._read += _FRAME.size + _padded(length)
        self._order()
        self._words[_READ_OFFSET // 8] = self._read
        return message

    def wait(self, seconds: float, *, spin: float = 0.0, position: int | None = None) -> None:
        """Return when something was written beyond `position`, or after `seconds`; for any thread.

        That is as far as the caller knows of; the default is what has been read, for callers who alone read. The first
        `spin` seconds are spent looking, which gives way to other threads of the process and of the machine.
        """
        known = self._read if position is None else position
        words, index = self._words, _WRITTEN_OFFSET // 8
        if spin > 0:
            until = time.perf_counter() + min(spin, seconds)
            while words[index] == known and time.perf_counter() < until:
                spin_wait(self._address, known, _LOOKS)
                if words[index] == known:
                    _give_way()
        if words[index] == known:
            self._bell.wait(known & 0xFFFFFFFF, seconds)

    def _take(self, at: int, length: int) -> bytes:
        first = self._capacity - at
        if length <= first:
            return bytes(self._data[at : at + length])
        return bytes(self._data[at:]) + bytes(self._data[: length - first])


def create_ring(capacity: int, nonce: bytes) -> Segment:
    """Memory with an empty ring of `capacity` bytes, a power of two. SegmentError if there is no memory."""
    _check(capacity, nonce)
    segment = Segment.create(DATA_OFFSET + capacity)
    _HEADER.pack_into(segment.memory, 0, MAGIC, LAYOUT_VERSION, DATA_OFFSET, capacity, nonce)
    return segment


def open_ring(path: str, size: int, nonce: bytes) -> Segment:
    """Map a ring of another process, `size` bytes in all. SegmentError if it is not the one that carries `nonce`."""
    capacity = size - DATA_OFFSET
    _check(capacity, nonce)
    segment = Segment.open(path, size)
    if _HEADER.unpack_from(segment.memory) != (MAGIC, LAYOUT_VERSION, DATA_OFFSET, capacity, nonce):
        raise SegmentError(f"{path} is not the ring that was meant")
    return segment


def writer(segment: Segment) -> RingWriter:
    """The writing end of a ring that is empty."""
    return RingWriter(segment, len(segment.memory) - DATA_OFFSET)


def reader(segment: Segment) -> RingReader:
    """The reading end of a ring of which nothing was read."""
    return RingReader(segment, len(segment.memory) - DATA_OFFSET)


def capacity_for(message_bytes: int, messages: int = 2) -> int:
    """The least capacity that holds so many messages of that size."""
    wanted = messages * (_padded(message_bytes) + _FRAME.size)
    return min(max(1 << (wanted - 1).bit_length(), MIN_CAPACITY), MAX_CAPACITY)


def _padded(length: int) -> int:
    return -(-length // _ALIGNMENT) * _ALIGNMENT


def _check(capacity: int, nonce: bytes) -> None:
    if sys.byteorder != "little":
        raise SegmentError("the ring's words are little-endian, this processor's are not")
    if not MIN_CAPACITY <= capacity <= MAX_CAPACITY or capacity & (capacity - 1) or len(nonce) != NONCE_BYTES:
        raise SegmentError(f"a ring of {capacity} bytes with a nonce of {len(nonce)} cannot be")
