"""A request on its way to drafters: its tokens, and the slots of attachments that hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verify_service.core.draft_source import RequestOpening
from verify_service.draft_link.attachment import Attachment
from verify_service.draft_link.records import Offer
from verify_service.draft_link.slots.slot import Slot


@dataclass(frozen=True, slots=True, eq=False)
class SlotRef:
    """A request's slot of one attachment."""

    attachment: Attachment
    slot: Slot
    index: int
    """Of the offer that drafts for the request."""

    @property
    def offer(self) -> Offer:
        """What drafts for the request."""
        return self.attachment.request.offers[self.index]


@dataclass(slots=True, eq=False)
class RoutedRequest:
    """A request between begin and end, with all that a drafter needs to be brought up to date."""

    opening: RequestOpening
    tokens: list[int]
    max_nodes: int = 1
    max_depth: int = 0
    routing_hash: float = 0.0
    current_slot: SlotRef | None = None
    next_slot: SlotRef | None = None
    """Slot of another drafter that takes the request over once it has caught up; fed beside `current_slot`."""
    nacked_epoch: int = 0
    """Epoch of an attachment that has nacked the request instead of taking it over."""

    @property
    def slots(self) -> Sequence[SlotRef]:
        """All slots that are fed."""
        if self.next_slot is None:
            return () if self.current_slot is None else (self.current_slot,)
        return (self.next_slot,) if self.current_slot is None else (self.current_slot, self.next_slot)

    def may_reopen(self, ref: SlotRef) -> bool:
        """Return whether a drafter may be sent all tokens again now; count it as sent."""
        return ref.attachment.rate_limiter.try_reopen(len(self.tokens))

    def advance(self, ref: SlotRef) -> None:
        """Move a slot to the request's present state."""
        tokens = self.tokens
        ref.slot.advance_to(len(tokens), tokens[-1], self.max_nodes, self.max_depth, ref.offer)


def drafted_for(refs: Sequence[SlotRef], now: float) -> list[SlotRef]:
    """Those of these slots whose drafter is asked for their trees now."""
    asked = {each: each.circuit_breaker.allows_requests(now) for each in {ref.attachment for ref in refs}}
    return [ref for ref in refs if asked[ref.attachment] and ref.slot.drafted_for]
