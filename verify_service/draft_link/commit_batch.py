"""What one step says to one draft service."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from slipstream_kernels.draft_protocol.records import Commit, DeviceRows
from slipstream_kernels.models.capture_layers import Bits
from verify_service.core.draft_source import Committed
from verify_service.draft_link.attachment import Attachment
from verify_service.draft_link.hidden_state_feed import MESSAGE_BYTES, bytes_of
from verify_service.draft_link.slot import Slot
from verify_service.hidden_states.device_ring import RingSlice
from verify_service.hidden_states.rows import HiddenStateRows


@dataclass(slots=True, eq=False)
class CommitBatch:
    """The commits of one step to one attachment."""

    attachment: Attachment
    records: list[Commit[Bits]] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    ring_slices: list[RingSlice] = field(default_factory=list)
    state_bytes: int = 0

    def add(self, slot: Slot, committed: Committed) -> None:
        """Its tokens, and their states where the slot has all those before, and the message has room."""
        states: Bits | None = None
        rows: DeviceRows | None = None
        features = _aligned(slot, committed.features)
        ring_slice = None if features is None else features.ring_slice_for(slot)
        if features is not None and ring_slice is not None:
            self.ring_slices.append(ring_slice)
            rows = ring_slice.rows(features.first, features.end)
        elif features is not None and self.state_bytes + bytes_of(slot, features) <= MESSAGE_BYTES:
            states = features.select(slot.boundaries)
            self.state_bytes += states.nbytes
        if features is not None and (states is not None or rows is not None):
            slot.states_sent_until += len(features)
        self.records.append(
            Commit(slot.stamp, committed.token_ids, slot.max_nodes, slot.max_depth, states, slot.tree_id, rows)
        )
        self.slots.append(slot)

    def put(self) -> bool:
        """Queue the message, without states' bytes if these do not fit; False if it does not fit either way."""
        fits = self.attachment.outbox.put(self.records)
        if not fits and self.state_bytes:
            for slot, record in zip(self.slots, self.records, strict=True):
                slot.states_sent_until -= 0 if record.hidden_states is None else len(record.hidden_states)
            fits = self.attachment.outbox.put([replace(record, hidden_states=None) for record in self.records])
        for ring_slice in self.ring_slices if fits else ():
            ring_slice.reservation.queued += 1
        return fits


def _aligned(slot: Slot, features: HiddenStateRows | None) -> HiddenStateRows | None:
    """The states of a step, if the slot wants them and they follow those it has."""
    if not slot.boundaries or features is None or features.first != slot.states_sent_until:
        return None
    return features if features.has(slot.boundaries) else None
