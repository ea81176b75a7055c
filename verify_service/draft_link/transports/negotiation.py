"""By which transports an attachment can exchange records, and the memory that these need."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.rpc.errors import FailedPreconditionError, ResourceExhaustedError, SlipstreamError
from slipstream_kernels.draft_protocol.records import DeviceRingAddress, SharedMemoryAddress
from slipstream_kernels.draft_protocol.tree_wire import TreeReader
from slipstream_kernels.ipc.segment import SegmentError
from slipstream_kernels.sync.hybrid_event import HybridEvent
from verify_service.draft_link.attachment import CUDA_IPC, GRPC, SHM, Attachment
from verify_service.draft_link.link_config import LinkConfig
from verify_service.draft_link.records import AttachReply, AttachRequest, LinkFacts
from verify_service.draft_link.routing.hidden_state_feed import MESSAGE_BYTES
from verify_service.draft_link.transports.base import StreamTransport, Transport, Wake
from verify_service.draft_link.transports.shm import SharedRings, ShmTransport
from verify_service.hidden_states.device_ring import DeviceRing
from verify_service.hidden_states.device_ring_pool import DeviceRingPool

_log = logging.getLogger(__name__)

LONG_SPIN = 2e-4
"""Seconds of a spin that answers over a stream can come in."""
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

    def attach_response(self, version: int, attachment: Attachment, deadline: float) -> AttachReply:
        """Return the response to Attach; steps wait at most `deadline` seconds for the drafter's trees."""
        return AttachReply(
            version,
            attachment.epoch,
            self.transports[0],
            attachment.slots.size,
            round(deadline * 1e6),
            self.shared_memory,
            attachment.slots.max_ahead,
            self.device_ring,
            self.reason,
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
            transport = ShmTransport(self.rings, attachment.slots.size, wake, self.trees, ring, spin=self.spin)
            attachment.ring = ring
        if attachment.ring is None:
            self.close()
        return transport

    def close(self) -> None:
        """Nothing will be opened any more."""
        if self.ring is not None:
            self.ring.closed = True


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
