"""Proposers in this process: `inproc`, an attachment like any other whose records no other process sees."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib.metadata import entry_points
from time import perf_counter

from slipstream.rpc.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
    SlipstreamError,
)
from slipstream_kernels.draft_protocol.proposer_host import (
    HOST_ENTRY_POINTS,
    IN_PROCESS,
    HostFactory,
    HostLimits,
    ProposerHost,
    Replies,
)
from slipstream_kernels.draft_protocol.records import Commit, Extend, Reply, TreeReply
from slipstream_kernels.models.checkpoint.model_config import CheckpointError
from slipstream_kernels.sync.hybrid_event import HybridEvent
from verify_service.draft_link.attachment import Attachment
from verify_service.draft_link.codec import (
    decode_attach,
    decode_replies,
    encode_attached,
    encode_commands,
    encode_link_info,
)
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.records import AttachReply
from verify_service.draft_link.send_queue import SendQueue
from verify_service.draft_link.transports.shm import reservations_of
from verify_service.hidden_states.device_ring import DeviceRing
from verify_service.hidden_states.device_ring_pool import ring_here

_log = logging.getLogger(__name__)

CPU = "cpu"
YIELD_SECONDS = 5e-4
"""How long a step's thread lets the proposers' begin, at most, before it goes on beside them."""
QUEUE_SECONDS = 2e-4
"""How long it then leaves the interpreter to proposers on a GPU, which let go of it now and then as they queue work."""
LOOK_SECONDS = 1e-3
"""How long a step sleeps at most before it looks whether the proposers' thread answers what it had begun itself."""


def load_host(specs: Sequence[str], limits: HostLimits) -> ProposerHost:
    """Load proposers beside the model. SlipstreamError, CheckpointError or OSError for those that cannot be had."""
    for entry in entry_points(group=HOST_ENTRY_POINTS, name=IN_PROCESS):
        try:
            factory: HostFactory = entry.load()
            return factory(specs, limits)
        except (SlipstreamError, CheckpointError, OSError):
            raise
        except Exception as error:
            _log.exception("proposers cannot be loaded")
            raise FailedPreconditionError(f"proposers {', '.join(specs)} cannot be loaded: {error}") from error
    raise FailedPreconditionError(
        f"no installed package has the entry point {IN_PROCESS} in group {HOST_ENTRY_POINTS}, through which proposers "
        f"are run in this process; the package that holds the draft service has it"
    )


def attach_host(link: DraftLink, host: ProposerHost, *, device: str = CPU, max_step_rows: int = 0) -> Attachment:
    """Attach the host's proposers for as long as the link lives.

    `device` is the model's, `cpu` or `cuda:N`. Proposers on a GPU, that one or another, take states from its memory
    where `max_step_rows` says how many rows a step has at most.
    SlipstreamError if they do not fit the model, or want more states than are published.
    """
    request = decode_attach(host.offer(encode_link_info(link.facts, (IN_PROCESS,))))
    boundaries = max(len(offer.feature_boundaries) for offer in request.offers)
    ring: DeviceRing | None = None
    if max_step_rows and boundaries and CPU not in (device, host.state_device):
        try:
            hidden_size = link.facts.hidden_size
            ring = ring_here(device, boundaries, max_step_rows=max_step_rows, hidden_size=hidden_size)
        except ResourceExhaustedError as error:
            _log.warning("states reach the proposers of this process through the host's memory: %s", error.message)

    def connect(attachment: Attachment, reply: AttachReply) -> InProcessTransport:
        transport = InProcessTransport(link, attachment, host, ring)
        attachment.ring = ring
        attachment.follow = host.follow if ring is not None and device == host.state_device else None
        attachment.overlap = "drafts behind the pass, on the device" if attachment.follow else ""
        host.attach(encode_attached(reply), transport.take, None if ring is None else ring.block)
        return transport

    return link.attach_here(request, connect)


class InProcessTransport:
    """`inproc`: commits, states and trees as they are, whatever comes once a request as a message."""

    __slots__ = (
        "_alarm",
        "_asked",
        "_attachment",
        "_begun",
        "_host",
        "_link",
        "_replies",
        "_ring",
        "_sent",
    )

    name = IN_PROCESS

    def __init__(
        self, link: DraftLink, attachment: Attachment, host: ProposerHost, ring: DeviceRing | None = None
    ) -> None:
        """`ring` has the states that records name by their place there."""
        self._link = link
        self._ring = ring
        self._sent = 0
        self._attachment = attachment
        self._host = host
        self._alarm = HybridEvent()
        self._asked = False
        """Whether what was sent since the last `yield_gil` asks for a tree."""
        self._begun = False
        """Whether the step's thread has begun with it itself."""
        self._replies: Replies = ()
        """What it got, to be received."""

    def take(self, replies: Replies) -> None:
        """Hand replies to the link, on the host's thread. What no correct host sends ends the attachment."""
        try:
            self._link.receive(self._attachment, self._decoded(replies), 0)
            self._alarm.notify(yield_gil=True)
        except InvalidArgumentError as error:
            _log.error("the proposers of this process are detached: %s", error.message)
            self._link.drop(self._attachment, error)

    def send(self, outbox: SendQueue) -> None:
        while records := outbox.take():
            self._asked |= any(isinstance(record, Commit) and record.max_nodes > 1 for record in records)
            self._host.put(
                [record if isinstance(record, Commit | Extend) else encode_commands([record]) for record in records]
            )
            self._sent += 1
            for reservation in [] if self._ring is None else reservations_of(records):
                reservation.on_sent(self._sent)

    def yield_gil(self) -> None:
        asked, self._asked, position = self._asked, False, self.position
        if asked and self._host.begin():
            self._begun = True
            return
        if self._host.yield_gil(YIELD_SECONDS) and asked and self._host.spin:
            self._alarm.wait(position, QUEUE_SECONDS, spin=QUEUE_SECONDS)

    def receive(self) -> list[tuple[list[Reply], int]]:
        if self._begun and not self._replies:
            self._finish(0.0)
        if self._ring is not None:
            self._ring.release(self._host.released, self._sent)
        replies, self._replies = self._replies, ()
        return [(self._decoded(replies), 0)] if replies else []

    @property
    def polled(self) -> bool:
        """Whether answers are looked out for: those of the host's own thread are with the link already then."""
        return self._host.spin > 0 or self._begun

    @property
    def position(self) -> int:
        return self._alarm.position

    def wait(self, seconds: float, position: int) -> None:
        begun = perf_counter()
        if self._begun and self._finish(seconds):
            return
        spin, left = self._host.spin, seconds - (perf_counter() - begun)
        self._alarm.wait(position, left if spin else min(left, LOOK_SECONDS), spin=spin)

    def close(self) -> None:
        if self._ring is not None:
            self._ring.closed = True
        self._host.detach()
        self._alarm.notify(yield_gil=True)

    def release(self) -> None:
        return None

    def _finish(self, seconds: float) -> bool:
        """Keep what the host answers to what was begun; False where it is not there, or its own thread answers."""
        replies = self._host.finish(seconds, unread=self._attachment.unread)
        if replies is None:
            return False
        self._begun, self._replies = False, replies
        return True

    def _decoded(self, replies: Replies) -> list[Reply]:
        """InvalidArgumentError for what no correct host sends."""
        taken: list[Reply] = []
        for reply in replies:
            if isinstance(reply, TreeReply):
                taken.append(reply)
            else:
                taken.extend(decode_replies(reply, self._attachment.slots.size))
        return taken
