"""Transports `shm` and `cuda_ipc`: the worker reads records from a ring of shared memory, and replies by another.

By `cuda_ipc` states stay on the GPU: records name their place in a ring there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from draft_service.protocol import codec
from draft_service.protocol.codec import AttachGrant
from draft_service.protocol.records import Record
from draft_service.verify_link.hidden_state_ring import HiddenStateRing
from draft_service.verify_link.reply_queue import ReplyQueue
from slipstream.rpc.errors import FailedPreconditionError, SlipstreamError, UnavailableError
from slipstream_kernels.draft_protocol.records import Reply
from slipstream_kernels.ipc.byte_ring import RingError, RingReader, RingWriter, open_ring, reader, writer
from slipstream_kernels.ipc.device_memory import DeviceMemoryError
from slipstream_kernels.ipc.segment import SegmentError

if TYPE_CHECKING:
    from draft_service.verify_link.device_queue import DevicePassQueue

_log = logging.getLogger(__name__)

MAX_UNSENT = 1024
"""Replies held for a verify service that does not read."""
MOST_UNRELEASED = 8
"""Messages after which verify is told which states have been copied, where nothing is sent or waited for."""
MESSAGES_PER_LOOK = 256
"""Messages taken in before those of them that want trees are answered."""


class ShmExchange:
    """Both rings of one attachment. Belongs to the worker's thread, except for `wake`."""

    __slots__ = (
        "_ends",
        "_fail",
        "_most",
        "_outbox",
        "_spin",
        "_spins_until",
        "_states",
        "_unreleased",
        "_unsent",
        "queue",
    )

    def __init__(
        self,
        attachment: AttachGrant,
        fail: Callable[[SlipstreamError], None],
        open_states: Callable[[], HiddenStateRing] | None = None,
        *,
        spin: float = 0.0,
        open_queue: Callable[[HiddenStateRing], DevicePassQueue | None] | None = None,
    ) -> None:
        """Open the rings and echo the nonce; `fail` is told, on the worker's thread, if verify breaks the rules later.

        For `spin` seconds after a record the next one is looked for without sleeping.
        With `open_states` also the device's, before anything is written; its nonce follows the other's, and behind it
        that of the queue which `open_queue` opens, if it does.
        FailedPreconditionError if the rings cannot be opened from here.
        """
        memory = attachment.shared_memory
        if memory is None:
            raise FailedPreconditionError("verify named no shared memory")
        try:
            incoming = reader(open_ring(*memory.to_draft, memory.nonce))
            outgoing = writer(open_ring(*memory.to_verify, memory.nonce))
            states = None if open_states is None else open_states()
            queue = None if states is None or open_queue is None else open_queue(states)
            nonces = [each.nonce for each in (states, queue) if each is not None]
            outgoing.write(memory.nonce + b"".join(nonces))
        except (SegmentError, RingError, DeviceMemoryError) as error:
            raise FailedPreconditionError(str(error)) from error
        self._states = states
        self.queue = queue
        """Through which rounds are queued behind verify's passes; None where they are not."""
        self._ends: tuple[RingReader, RingWriter] | None = (incoming, outgoing)
        self._fail = fail
        self._outbox = ReplyQueue(MAX_UNSENT)
        self._unsent = b""
        self._unreleased = 0
        self._spin, self._spins_until = spin, 0.0
        self._most = max(1, min(attachment.replies_per_message, outgoing.limit // codec.BYTES_PER_REPLY))

    def receive(self) -> list[Record]:
        """What has arrived, in order; also sends what found no room before."""
        self._flush()
        records: list[Record] = []
        try:
            for _ in range(MESSAGES_PER_LOOK):
                message = None if self._ends is None else self._ends[0].read(self._ends[0].limit)
                if message is None:
                    break
                arrived, follow = codec.decode_commands_and_follow(message)
                if follow is not None and self.queue is not None:
                    self.queue.told(follow)
                records.extend(arrived if self._states is None else self._states.resolve(arrived))
                self._unreleased += 1
            if self._unreleased >= MOST_UNRELEASED:
                self._release()
            if records and self._spin:
                self._spins_until = time.perf_counter() + self._spin
        except (RingError, SlipstreamError) as error:
            self._give_up(error)
        return records

    def send(self, replies: Sequence[Reply]) -> None:
        """Send replies; what finds no room waits, the oldest trees of it not for long."""
        self._outbox.put(replies)
        self._flush()
        self._release()

    def wait(self, seconds: float) -> None:
        """Return when something may have arrived, when woken, or after `seconds`."""
        self._release()
        if self._ends is None:
            time.sleep(seconds)
        else:
            spin = self._spins_until - time.perf_counter() if self._spin else 0.0
            self._ends[0].wait(seconds, spin=spin)

    def wake(self) -> None:
        """End a wait; one that is just about to begin may be missed. For any thread."""
        ends = self._ends
        if ends is not None:
            ends[0].ring()

    def close(self) -> None:
        """Let the memory go; nothing is received or sent any more."""
        states, self._ends, self._states = self._states, None, None
        queue, self.queue = self.queue, None
        if queue is not None:
            queue.close()
        if states is not None:
            states.close()

    def _release(self) -> None:
        """Tell verify which states have been copied."""
        self._unreleased = 0
        if self._ends is not None and self._states is not None:
            self._ends[1].set_mark(self._states.released)

    def _flush(self) -> None:
        try:
            while self._ends is not None:
                if not self._unsent:
                    replies = self._outbox.take_now(self._most)
                    if not replies:
                        return
                    self._unsent = codec.encode_replies(replies).SerializeToString()
                if not self._ends[1].write(self._unsent):
                    return
                self._unsent = b""
        except Exception as error:  # noqa: BLE001 (as over a stream: replies that cannot be sent end the attachment)
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self.close()
        _log.error("the exchange through shared memory failed: %s", error)
        self._fail(UnavailableError(f"shared memory: {error}"))
