"""A ring of shared memory whose other end writes anything anywhere, between any two looks of this end."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import ClassVar

from fuzz.raw_bytes import NUMBERS, joined, parted
from fuzz.target import BrokenError, Target
from slipstream_kernels.ipc.byte_ring import (
    DATA_OFFSET,
    MIN_CAPACITY,
    NONCE_BYTES,
    RingError,
    RingReader,
    RingWriter,
    create_ring,
    writer,
)
from slipstream_kernels.ipc.segment import Segment

_WRITTEN, _READ, _MARK = 64, 128, 192
_FRAME = struct.Struct("<II")
_NONCE = bytes(NONCE_BYTES)
_MOST = 2048
"""Bytes of the largest message that is taken."""
_READ_NOW, _WRITE_NOW, _SCRIBBLE, _SEND = range(4)


class TornReader(RingReader):
    """One whose memory is written to between its look at an index and its copy of the bytes."""

    __slots__ = ("between",)

    between: Callable[[], None]

    def _order(self) -> None:
        self.between()
        super()._order()


class ByteRings(Target):
    """Messages are copies within their bounds, in order, or the ring is refused; nothing else is ever raised."""

    name: ClassVar[str] = "byte_ring"
    share: ClassVar[int] = 180

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._segment: Segment = create_ring(MIN_CAPACITY, _NONCE)
        self._clean = bytes(self._segment.memory[:])
        self._scribbles: list[bytes] = []

    def make(self, random: Random) -> bytes:
        """Operations: a message sent as it should be, memory written to, a read or a write by this end."""
        parts: list[bytes] = []
        for _ in range(1 + int(random.expovariate(0.15))):
            kind = random.choice((_SEND, _SEND, _READ_NOW, _READ_NOW, _WRITE_NOW, _SCRIBBLE, _SCRIBBLE))
            if kind == _SCRIBBLE:
                parts.append(bytes([kind]) + _scribble(random))
            elif kind in (_SEND, _WRITE_NOW):
                size = random.choice((0, 1, 7, 8, 100, 2040, 2048, 2049, 4088, 5000))
                parts.append(bytes([kind]) + struct.pack("<H", size))
            else:
                parts.append(bytes([kind]))
        return joined(parts)

    def check(self, data: bytes) -> None:
        self._segment.memory[:] = self._clean
        self._scribbles = []
        end = TornReader.__new__(TornReader)
        end.between = self._scribble
        RingReader.__init__(end, self._segment, MIN_CAPACITY)
        outgoing, peer = writer(self._segment), writer(self._segment)
        for part in parted(data, 200):
            try:
                self._step(part, end, outgoing, peer)
            except RingError:
                return

    def _step(self, part: bytes, end: TornReader, outgoing: RingWriter, peer: RingWriter) -> None:
        kind, rest = (part[0] % 4, part[1:]) if part else (_READ_NOW, b"")
        if kind == _SCRIBBLE:
            self._scribbles.append(rest)
            if len(self._scribbles) > 3:
                self._scribble()
        elif kind == _READ_NOW:
            message = end.read(_MOST)
            if message is not None and len(message) > _MOST:
                raise BrokenError(f"a message of {len(message)} bytes")
            if not 0 <= end.mark < 2**64:
                raise BrokenError("a mark of more than 64 bits")
        else:
            size = int.from_bytes(rest[:2], "little") % 6000
            (peer if kind == _SEND else outgoing).write(bytes(size))

    def _scribble(self) -> None:
        """Write one of what waits to be written where it says, as the peer may at any time."""
        if self._scribbles:
            where = self._scribbles.pop(0)
            at = int.from_bytes(where[:2], "little") % (DATA_OFFSET + MIN_CAPACITY)
            data = where[2 : 2 + DATA_OFFSET + MIN_CAPACITY - at]
            self._segment.memory[at : at + len(data)] = data


def _scribble(random: Random) -> bytes:
    """An index, a frame or any bytes, behind the place where to write them."""
    kind = random.random()
    if kind < 0.5:
        value = random.choice((*NUMBERS, random.randrange(0, 9000, 8)))
        return struct.pack("<HQ", random.choice((_WRITTEN, _WRITTEN, _READ, _MARK)), value % 2**64)
    if kind < 0.85:
        length, sequence = (
            random.choice((0, 1, 8, 2048, 2049, 4096, 2**31, 2**32 - 1)),
            random.choice((0, 1, 2, 3, 2**32 - 1)),
        )
        return struct.pack("<H", DATA_OFFSET + random.randrange(0, MIN_CAPACITY, 8)) + _FRAME.pack(length, sequence)
    return struct.pack("<H", random.randrange(DATA_OFFSET + MIN_CAPACITY)) + random.randbytes(
        random.choice((1, 8, 64, 2000))
    )
