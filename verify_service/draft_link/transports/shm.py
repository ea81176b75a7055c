"""`shm` and `cuda_ipc`: records in two byte rings of shared memory; no call and no other thread is on a step's path."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence

from slipstream.rpc.errors import FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError
from slipstream_kernels.draft_protocol.records import (
    Commit,
    Extend,
    Reply,
    Reservation,
    RingAddress,
    SharedMemoryAddress,
)
from slipstream_kernels.draft_protocol.tree_wire import TreeReader
from slipstream_kernels.ipc.byte_ring import (
    NONCE_BYTES,
    RingError,
    RingReader,
    RingWriter,
    capacity_for,
    create_ring,
    reader,
    writer,
)
from slipstream_kernels.ipc.segment import Segment
from verify_service.draft_link.codec import decode_replies, encode_commands, message_limit
from verify_service.draft_link.link_config import CUDA_IPC, SHM
from verify_service.draft_link.records import Command
from verify_service.draft_link.send_queue import SendQueue
from verify_service.draft_link.transports.base import Wake
from verify_service.hidden_states.device_ring import DeviceRing

MESSAGES_PER_POLL = 4
"""Messages taken in at once, so that a drafter that floods delays a step by a bounded amount."""
_BYTES_PER_TOKEN = 5  # of a varint
_OPEN_EXTRA = 1 << 16  # sampling parameters and the like
_MAX_REPLY_BYTES = 1 << 24


class SharedRings:
    """The memory of one attachment: a ring a direction, which the drafter opens by path until `hide`."""

    __slots__ = ("nonce", "to_draft", "to_verify")

    def __init__(self, num_slots: int, max_context: int, state_bytes: int = 0) -> None:
        """Rings that hold a whole Open, or a message with `state_bytes` of hidden states, and the largest of replies.

        SegmentError if there is no memory.
        """
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        commands = capacity_for(_BYTES_PER_TOKEN * max_context + _OPEN_EXTRA + state_bytes, messages=4)
        replies = capacity_for(min(message_limit(num_slots), _MAX_REPLY_BYTES), messages=1)
        self.to_draft: Segment = create_ring(commands, self.nonce)
        self.to_verify: Segment = create_ring(replies, self.nonce)
        reader(self.to_verify)  # what any of them runs is compiled now, and not while the link waits

    @property
    def address(self) -> SharedMemoryAddress:
        """What the drafter is told."""
        return SharedMemoryAddress(_address(self.to_draft), _address(self.to_verify), self.nonce)

    def hide(self) -> None:
        """Nobody else can open the rings from now on."""
        self.to_draft.hide()
        self.to_verify.hide()


class ShmTransport:
    """Both ends' rings, once the drafter has shown that it reaches them; as `cuda_ipc` beside a ring of states."""

    __slots__ = (
        "_ends",
        "_fault",
        "_limit",
        "_num_slots",
        "_over",
        "_reservations",
        "_ring",
        "_spin",
        "_trees",
        "_unsent",
        "_waited",
        "_wake",
        "name",
        "queue_mapped",
    )

    polled = True

    def __init__(
        self,
        rings: SharedRings,
        num_slots: int,
        wake: Wake,
        trees: TreeReader,
        ring: DeviceRing | None = None,
        *,
        spin: float = 0.0,
        queue_nonce: bytes = b"",
    ) -> None:
        """`trees` is the link's, whose lock guards it. `spin` is how many seconds a wait looks before it sleeps.

        FailedPreconditionError unless the drafter's first message echoes the nonce, and behind it the ring's; behind
        that may be the queue's.
        """
        rings.hide()
        self.name = SHM if ring is None else CUDA_IPC
        self._ring = ring
        self._wake = wake
        self._num_slots, self._limit = num_slots, message_limit(num_slots)
        self._trees = trees
        self._spin = spin
        incoming = reader(rings.to_verify)
        self._ends: tuple[RingWriter, RingReader] | None = (writer(rings.to_draft), incoming)
        self._over = False
        self._waited = threading.Lock()
        """held by whoever waits, and by whoever lets the rings go: to unmap them is not a step's work"""
        self._unsent = b""
        self._reservations: list[Reservation] = []
        """Those that the message not yet sent names."""
        self._fault: RingError | ResourceExhaustedError | None = None
        expected = rings.nonce if ring is None else rings.nonce + ring.nonce
        try:
            echo = incoming.read(len(expected) + len(queue_nonce))
        except RingError as error:
            raise FailedPreconditionError(f"the rings were written to by mistake: {error}") from error
        if echo is None or echo[:NONCE_BYTES] != rings.nonce:
            raise FailedPreconditionError("the nonce did not come through shared memory")
        self.queue_mapped = bool(queue_nonce) and echo == expected + queue_nonce
        """Whether the drafter has opened the device queue, too."""
        if echo != expected and not self.queue_mapped:
            raise FailedPreconditionError("the nonce did not come through the device's memory")

    def send(self, outbox: SendQueue) -> None:
        """What finds no room stays in the outbox, whose limit bounds it."""
        if self._over or self._ends is None:
            return
        outgoing = self._ends[0]
        try:
            while self._fault is None:
                if not self._unsent:
                    records = outbox.take()
                    if not records:
                        return
                    self._unsent = encode_commands(records)
                    self._reservations = [] if self._ring is None else reservations_of(records)
                if not outgoing.write(self._unsent):
                    if len(self._unsent) > outgoing.limit:
                        self._fault = ResourceExhaustedError(
                            f"records of {len(self._unsent)} bytes exceed the ring's {outgoing.limit}"
                        )
                    return
                self._unsent = b""
                for reservation in self._reservations:
                    reservation.on_sent(outgoing.messages)
        except RingError as error:
            self._fault = error

    def yield_gil(self) -> None:
        return None

    def receive(self) -> list[tuple[list[Reply], int]]:
        if isinstance(self._fault, ResourceExhaustedError):
            raise self._fault
        if self._fault is not None:
            raise InvalidArgumentError(f"shared memory: {self._fault}")
        messages: list[tuple[list[Reply], int]] = []
        if self._over or self._ends is None:
            return messages
        incoming = self._ends[1]
        try:
            if self._ring is not None:
                self._ring.release(incoming.mark, self._ends[0].messages)
            for _ in range(MESSAGES_PER_POLL):
                data = incoming.read(self._limit)
                if data is None:
                    break
                messages.append((decode_replies(data, self._num_slots, self._trees), len(data)))
        except RingError as error:
            raise InvalidArgumentError(f"shared memory: {error}") from error
        return messages

    @property
    def position(self) -> int:
        return 0 if self._ends is None else self._ends[1].position

    def wait(self, seconds: float, position: int) -> None:
        with self._waited:
            if self._ends is not None and self._fault is None and not self._over:
                self._ends[1].wait(seconds, spin=self._spin, position=position)

    def close(self) -> None:
        self._over, self._fault = True, None
        if self._ring is not None:
            self._ring.closed = True
        if self._ends is not None:
            self._ends[1].ring()
        self._wake()

    def release(self) -> None:
        with self._waited:
            ends, self._ends = self._ends, None
        del ends


def reservations_of(records: Sequence[Command]) -> list[Reservation]:
    """Return the device-ring reservations that records name, once for each record."""
    named = [each.device_rows for each in records if isinstance(each, Commit | Extend) and each.device_rows]
    return [rows.reservation for rows in named if rows.reservation is not None]


def _address(segment: Segment) -> RingAddress:
    return RingAddress(segment.path, len(segment.memory))
