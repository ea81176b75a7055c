"""By which transports an attachment can exchange records, and the memory that these need."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipstream.rpc.errors import FailedPreconditionError, ResourceExhaustedError, SlipstreamError
from slipstream_kernels.draft_protocol.records import DeviceQueueAddress, DeviceRingAddress, SharedMemoryAddress
from slipstream_kernels.draft_protocol.tree_wire import TreeReader
from slipstream_kernels.ipc.segment import SegmentError
from slipstream_kernels.sync.hybrid_event import HybridEvent
from verify_service.draft_link.attachment import Attachment
from verify_service.draft_link.link_config import CUDA_IPC, GRPC, SHM, LinkConfig
from verify_service.draft_link.records import AttachReply, AttachRequest, LinkFacts
from verify_service.draft_link.routing.hidden_state_feed import MESSAGE_BYTES
from verify_service.draft_link.transports.base import StreamTransport, Transport, Wake
from verify_service.draft_link.transports.shm import SharedRings, ShmTransport
from verify_service.hidden_states.device_ring import DeviceRing
from verify_service.hidden_states.device_ring_pool import DeviceRingPool

if TYPE_CHECKING:
    from verify_service.draft_link.device_queue import DeviceQueue

_log = logging.getLogger(__name__)

LONG_SPIN = 2e-4
"""Seconds of a spin that answers over a stream can come in."""
ASKS_AHEAD = "it asks to draft ahead of passes, which is no longer done"
AWAKE_CPUS = 4
"""So many must the process have for that: the step's thread keeps one, that of the calls another, and others work."""


@dataclass(slots=True, eq=False)
class NegotiatedTransports:
    """Transports that can be had, best first, and what they need. `reason` is why not a better one than the first.

    `trees` reads those that come through shared memory.
    `spin` is for how many seconds a wait looks for trees without sleeping, where it can; over a stream by the alarm.
    """

    transports: tuple[str, ...]
    trees: TreeReader | None = None
    rings: SharedRings | None = None
    ring: DeviceRing | None = None
    reason: str = ""
    spin: float = 0.0
    alarm: HybridEvent | None = None
    queue: DeviceQueue | None = None
    overlap: str = ""
    """How drafting and verification overlap, and why not better."""

    @property
    def shared_memory(self) -> SharedMemoryAddress | None:
        """Where the drafter finds the rings of records."""
        return None if self.rings is None else self.rings.address

    @property
    def device_ring(self) -> DeviceRingAddress | None:
        """Where it finds that of states."""
        if self.ring is None:
            return None
        block = self.ring.block
        return DeviceRingAddress(block.handle, block.size, block.gpu_uuid)

    @property
    def device_queue(self) -> DeviceQueueAddress | None:
        """Where it finds the memory in which passes and rounds wait for one another."""
        if self.queue is None:
            return None
        block = self.queue.memory.block
        return DeviceQueueAddress(block.handle, block.size, block.gpu_uuid, self.queue.memory.rows)

    def attach_response(self, version: int, attachment: Attachment, deadline: float) -> AttachReply:
        """Return the response to Attach; steps wait at most `deadline` seconds for the drafter's trees."""
        return AttachReply(
            version,
            attachment.epoch,
            self.transports[0],
            attachment.slots.size,
            round(deadline * 1e6),
            self.shared_memory,
            self.device_ring,
            self.reason,
            self.device_queue,
        )

    def open(self, attachment: Attachment, name: str, wake: Wake) -> Transport:
        """The transport that the drafter has chosen, the first for an empty name; what it does not need is let go.

        FailedPreconditionError for one that is not among them or does not work.
        """
        chosen = name or self.transports[0]
        if chosen not in self.transports:
            raise FailedPreconditionError(f"transport {chosen[:80]!r} was not agreed on")
        if chosen == GRPC:
            transport: Transport = StreamTransport(wake, self.alarm, spin=self.spin)
        else:
            assert self.rings is not None
            assert self.trees is not None
            ring = self.ring if chosen == CUDA_IPC else None
            nonce = self.queue.memory.nonce if ring and self.queue else b""
            transport = ShmTransport(
                self.rings, attachment.slots.size, wake, self.trees, ring, spin=self.spin, queue_nonce=nonce
            )
            attachment.ring = ring
            if not transport.queue_mapped:
                self._close_queue("the drafter has not opened the device's queue")
        if attachment.ring is None:
            self.close()
        return transport

    def close(self) -> None:
        """Nothing will be opened any more."""
        if self.ring is not None:
            self.ring.closed = True
        self._close_queue("states do not stay on the device")

    def _close_queue(self, reason: str) -> None:
        if self.queue is not None:
            self.queue.close()
            self.queue, self.overlap = None, after_the_pass(reason)


def after_the_pass(reason: str) -> str:
    """What operators are told where the host is between a pass and the draft behind it."""
    return f"drafts after the pass: {reason}"


class TransportNegotiator:
    """Negotiates the transports of each attachment. For any thread; may wait for the device."""

    def __init__(self, facts: LinkFacts, config: LinkConfig, rings: DeviceRingPool | None) -> None:
        """`rings` are those of the model's GPU; None where there are none."""
        self._facts = facts
        self._config = config
        self._rings = rings
        self._trees = TreeReader()

    def negotiate(self, request: AttachRequest, transports: Sequence[str]) -> NegotiatedTransports:
        """Set up those of `transports`, which both ends speak, that can be had, best first.

        FailedPreconditionError or ResourceExhaustedError where that is nothing.
        """
        boundaries = max(len(offer.feature_boundaries) for offer in request.offers)
        negotiated, reasons = NegotiatedTransports((), self._trees, spin=self._config.spin), dict[str, str]()
        if GRPC in transports and self._config.spin >= LONG_SPIN and len(os.sched_getaffinity(0)) >= AWAKE_CPUS:
            negotiated.alarm = HybridEvent()
        names = [name for name in transports if name != CUDA_IPC or boundaries]
        if not names:
            raise FailedPreconditionError("transport cuda_ipc is for states, of which none are wanted here")
        if set(names) & {SHM, CUDA_IPC}:
            try:
                states = MESSAGE_BYTES if boundaries else 0
                negotiated.rings = SharedRings(self._config.num_slots, self._facts.max_context, states)
            except SegmentError as error:
                reasons |= dict.fromkeys((SHM, CUDA_IPC), str(error))
        if CUDA_IPC in names and CUDA_IPC not in reasons:
            try:
                negotiated.ring = self._ring(request, boundaries)
            except SlipstreamError as error:
                reasons[CUDA_IPC] = error.message
        if request.asks_ahead:
            negotiated.overlap = after_the_pass(ASKS_AHEAD)
        if negotiated.ring is not None:
            negotiated.queue, negotiated.overlap = self._queue(request, negotiated.ring.block.gpu_uuid)
        negotiated.transports = tuple(name for name in names if name not in reasons)
        if not negotiated.transports:
            raise ResourceExhaustedError("; ".join(f"{name}: {reasons[name]}" for name in names))
        better = names[: names.index(negotiated.transports[0])]
        negotiated.reason = "; ".join(f"{name}: {reasons[name]}" for name in better)
        if negotiated.reason:
            _log.warning("a better transport is not to be had for %r: %s", request.name[:80], negotiated.reason)
        return negotiated

    def _ring(self, request: AttachRequest, boundaries: int) -> DeviceRing:
        if self._rings is None:
            raise FailedPreconditionError("the model runs on the CPU, or its GPU's memory cannot be shared")
        if not request.gpu_uuid:
            raise FailedPreconditionError("the draft service names no GPU")
        return self._rings.take(request.process_id, boundaries)

    def _queue(self, request: AttachRequest, gpu_uuid: str) -> tuple[DeviceQueue | None, str]:
        """A queue on the model's GPU, where both processes' kernels run side by side, and what operators are told."""
        assert self._rings is not None
        reason = self._no_queue(request, side_by_side=request.gpu_uuid != gpu_uuid or (self._rings.mps and request.mps))
        if reason:
            return None, after_the_pass(reason)
        from verify_service.draft_link.device_queue import DeviceQueue  # with Triton, which a CPU need not load

        try:
            memory = self._rings.take_queue(request.process_id, self._config.num_slots)
            return DeviceQueue(memory, self._facts.vocab_size), "drafts behind the pass, on the device"
        except SlipstreamError as error:
            return None, after_the_pass(error.message)
        except Exception as error:  # noqa: BLE001 - a compiler that fails costs speed and nothing else
            _log.exception("the device's queue cannot be used")
            return None, after_the_pass(f"the device's queue cannot be used: {error!r:.200}")

    def _no_queue(self, request: AttachRequest, *, side_by_side: bool) -> str:
        """Why there cannot be any, as far as that is known before memory is taken."""
        if not any(offer.follows for offer in request.offers):
            return "none of its proposers can draft behind a pass"
        if not self._config.device_queue:
            return "the device's queue is turned off"
        if request.asks_ahead:
            return ASKS_AHEAD
        if not side_by_side:
            return "the processes take turns on the GPU; they would share it under NVIDIA MPS"
        return ""
