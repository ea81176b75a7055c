"""What one step says to one draft service."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream_kernels.draft_protocol.records import Commit, DeviceRows
from slipstream_kernels.models.capture_layers import Bits
from verify_service.core.draft_source import Committed
from verify_service.draft_link.attachment import Attachment
from verify_service.draft_link.routing.hidden_state_feed import MESSAGE_BYTES
from verify_service.draft_link.slots.slot import Slot
from verify_service.hidden_states.device_ring import RingSlice


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
        feed = slot.feed
        features = feed.continued_by(committed.features)
        if features is not None:
            ring_slice = features.ring_slice_for(feed)
            if ring_slice is not None:
                self.ring_slices.append(ring_slice)
                rows = ring_slice.rows(features.first, features.end)
                feed.sent_until = features.end
            elif self.state_bytes + feed.num_bytes(features) <= MESSAGE_BYTES:
                states = features.select(feed.boundaries)
                self.state_bytes += states.nbytes
                feed.sent_until = features.end
        queue = self.attachment.queue
        handed = slot.has_handed_tree if queue is None else queue.has_handed(slot.stamp)
        max_nodes = 1 if committed.behind and self._begins_behind(slot) else slot.max_nodes
        self.records.append(Commit(slot.stamp, committed.token_ids, max_nodes, slot.max_depth, states, rows, handed))
        self.slots.append(slot)

    def _begins_behind(self, slot: Slot) -> bool:
        """Whether a slot's drafter has yet to draft behind a step: what it did behind the last one, it answers."""
        queue = self.attachment.queue
        drafted = slot.has_handed_tree if queue is None else queue.has_row(slot.stamp)
        return not (drafted or slot.passed_over) and self.attachment.may_follow(slot)

    def put(self) -> bool:
        """Queue the message, without states' bytes if these do not fit; False if it does not fit either way."""
        fits = self.attachment.outbox.put(self.records)
        if not fits and self.state_bytes:
            for slot, record in zip(self.slots, self.records, strict=True):
                slot.feed.sent_until -= 0 if record.hidden_states is None else len(record.hidden_states)
            fits = self.attachment.outbox.put([record._replace(hidden_states=None) for record in self.records])
        for ring_slice in self.ring_slices if fits else ():
            ring_slice.reservation.queued += 1
        return fits
