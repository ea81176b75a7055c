"""A drafter that writes anything into its shared memory while the steps of a verify service go on."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random
from typing import ClassVar

from fuzz.played_link import PlayedLink
from fuzz.raw_bytes import NUMBERS, joined, parted
from fuzz.target import BrokenError, Target
from fuzz.targets.draft_link import ATTACH, RECEIVE, TAKE, play, steps
from slipstream.rpc.errors import SlipstreamError
from slipstream_kernels.ipc.byte_ring import NONCE_BYTES, RingError, RingWriter, writer
from slipstream_kernels.ipc.segment import Segment
from support.shared_memory import rings_of
from verify_service.draft_link.attachment import Attachment
from verify_service.draft_link.codec import decode_attach

SCRIBBLE = 8
_INDICES = (64, 128, 192)


class SharedMemory(Target):
    """As over a stream; besides nothing but the indices, lengths and bytes that were checked is ever used."""

    name: ClassVar[str] = "shared_memory"
    share: ClassVar[int] = 40

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._others = rings_of()  # of whatever else this process has done

    def make(self, random: Random) -> bytes:
        """As over a stream, with writes to either ring in between."""
        parts = steps(random, "shm")
        for _ in range(random.choice((0, 1, 1, 2, 5))):
            parts.insert(random.randint(1, len(parts)), bytes([SCRIBBLE]) + _scribble(random))
        return joined(parts)

    def check(self, data: bytes) -> None:
        played = PlayedLink()
        peer: Peer | None = None
        for part in parted(data):
            kind, rest = (part[0] % 9, part[1:]) if part else (TAKE, b"")
            if kind == ATTACH:
                peer = peer or Peer.attached(played, rest)
            elif kind in (RECEIVE, TAKE, SCRIBBLE):
                if peer is not None:
                    peer.act(kind, rest)
            else:
                play(played, kind, rest)
        played.close()

    def settle(self) -> None:
        if (left := rings_of() - self._others) > 0:
            raise BrokenError(f"{left} mappings or descriptors of rings are left")


class Peer:
    """The drafter's end of both rings."""

    def __init__(
        self, played: PlayedLink, attachment: Attachment, rings: tuple[Segment, Segment], out: RingWriter
    ) -> None:
        self._played, self._attachment, self._rings, self._out = played, attachment, rings, out

    @classmethod
    def attached(cls, played: PlayedLink, data: bytes) -> Peer | None:
        """None where it is refused."""
        try:
            request = decode_attach(data)
            reply = played.link.attach(request, loopback=True)
            address = reply.shared_memory
            if address is None:
                return None
            opened = [Segment.open(ring.path, ring.size) for ring in (address.to_draft, address.to_verify)]
            out = writer(opened[1])
            out.write(address.nonce)
            attachment = played.link.start(reply.epoch, lambda: None)
        except SlipstreamError:
            return None
        return cls(played, attachment, (opened[0], opened[1]), out)

    def act(self, kind: int, rest: bytes) -> None:
        """Write a message as it should be or bytes where they say, or have the link look after the ring."""
        if kind == RECEIVE:
            try:
                self._out.write(rest)
            except RingError:
                return  # its own scribbles
        elif kind == SCRIBBLE:
            memory = self._rings[rest[0] % 2 if rest else 0].memory
            at = int.from_bytes(rest[1:4], "little") % len(memory)
            written = rest[4 : 4 + len(memory) - at]
            memory[at : at + len(written)] = written
        elif self._attachment.ended is None:
            try:
                self._played.link.tend(self._attachment)
            except SlipstreamError as error:
                self._played.drop(self._attachment, error)


def _scribble(random: Random) -> bytes:
    """Which ring, where, and what."""
    ring = random.choice((0, 1, 1, 1))
    if random.random() < 0.6:
        at, value = random.choice(_INDICES), random.choice((*NUMBERS, random.randrange(0, 5000, 8), NONCE_BYTES + 8))
        return bytes([ring]) + at.to_bytes(3, "little") + struct.pack("<Q", value % 2**64)
    at = 4096 + random.choice((0, 8, 24, 32, random.randrange(0, 2048)))
    return (
        bytes([ring])
        + at.to_bytes(3, "little")
        + random.choice((struct.pack("<II", random.choice(NUMBERS) % 2**32, 2), random.randbytes(40)))
    )
