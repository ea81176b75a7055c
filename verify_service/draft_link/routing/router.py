"""Routes requests to attachments and feeds their slots. The draft link's lock guards all of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from slipstream.generation_types import FinishReason
from slipstream_kernels.draft_protocol.records import Gap
from verify_service.core.acceptance import VerifiedTree
from verify_service.core.draft_source import Committed, RequestOpening, StateChunk, StateSpan, WaitUrgency
from verify_service.core.request import RequestKey
from verify_service.draft_link.attachment import Attachment, offered_by
from verify_service.draft_link.records import Close, Open
from verify_service.draft_link.routing.commit_batch import CommitBatch
from verify_service.draft_link.routing.hidden_state_feed import reachable, send_states, step_bytes
from verify_service.draft_link.routing.routed_request import RoutedRequest, SlotRef
from verify_service.draft_link.slots.slot import Slot
from verify_service.draft_link.traffic_weight import pick_by_weight, routing_hash
from verify_service.hidden_states.device_ring import RingSlice
from verify_service.hidden_states.rows import HiddenStateRows

T = TypeVar("T")


class DraftRouter:
    """All requests that began, all attachments, and the slots in between."""

    __slots__ = ("_asks", "_clock", "_turn", "_unresponsive", "attachments", "gaps", "haste", "running")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.haste = WaitUrgency.HURRIED
        """That of the next step, as the last commit has it."""
        self.running: dict[RequestKey, RoutedRequest] = {}
        self.attachments: dict[int, Attachment] = {}
        self.gaps = 0
        self._turn = 0
        self._unresponsive: set[Attachment] = set()
        """Unresponsive attachments as last seen, with silent ones that have no requests."""
        self._asks = True
        """Whether any request asked for a tree after the last step."""

    @property
    def live(self) -> list[Attachment]:
        """Attachments whose exchange is open, the oldest first."""
        return [attachment for attachment in self.attachments.values() if attachment.live]

    @property
    def offered(self) -> list[str]:
        """All proposers that live attachments offer."""
        return [name for attachment in self.live for name in offered_by(attachment.request)]

    def offering(self, proposer: str) -> Attachment | None:
        """The newest live attachment that offers a proposer."""
        return next(iter(self._offering(proposer)), None)

    @property
    def catching_up(self) -> list[Attachment]:
        """Attachments that are about to take requests over, once for each request."""
        return [running.next_slot.attachment for running in self.running.values() if running.next_slot is not None]

    def current_slot(self, key: RequestKey) -> SlotRef | None:
        """Slot that a request's trees come from; None while it has no drafter or asks for no tree."""
        running = self.running.get(key)
        if running is None or running.current_slot is None or running.current_slot.slot.max_nodes <= 1:
            return None
        return running.current_slot

    def current_slots(self, keys: Iterable[RequestKey]) -> list[SlotRef]:
        """Slots of those among these requests that have a drafter."""
        found = (self.running[key].current_slot for key in keys if key in self.running)
        return [ref for ref in found if ref is not None]

    def begin(self, opening: RequestOpening) -> None:
        """Take a request in; it goes to the attachment that offers its proposer, if there is one."""
        running = RoutedRequest(opening, list(opening.token_ids), routing_hash=routing_hash(opening))
        self.running[opening.key] = running
        self._bind(running, caught_up=True)

    def wanted_boundaries(self) -> set[int]:
        """Those whose states any attachment wants."""
        wanted: set[int] = set()
        for attachment in self.attachments.values():
            if attachment.live:
                wanted |= attachment.boundaries
        return wanted

    def route(
        self, wanted: Sequence[StateSpan], captured: Sequence[int], hidden_size: int
    ) -> list[tuple[RingSlice, ...]]:
        """Room for states of each of `wanted`, in the rings of the drafters that take them from the device."""
        routes: list[tuple[RingSlice, ...]] = []
        fits: dict[tuple[int, ...], bool] = {(): False}
        for key, first, count in wanted:
            spans: list[RingSlice] = []
            running = self.running.get(key)
            for ref in () if running is None else running.slots:
                ring, feed = ref.attachment.ring, ref.slot.feed
                if feed.boundaries not in fits:
                    fits[feed.boundaries] = set(feed.boundaries) <= set(captured)
                if ring is not None and fits[feed.boundaries]:
                    ring_slice = ring.reserve(feed, first, count, hidden_size)
                    if ring_slice is not None:
                        spans.append(ring_slice)
            routes.append(tuple(spans))
        return routes

    def extend(self, chunks: Sequence[StateChunk]) -> None:
        """Feed states of tokens that requests had before."""
        self._make_room()
        for key, features in self._in_turn(chunks):
            if (running := self.running.get(key)) is not None:
                for ref in running.slots:
                    self._feed_states(running, ref, features, catch_up=self._asks or ref.slot.session.ever_requested)

    def commit(self, commits: Sequence[Committed]) -> set[RequestKey]:
        """Feed what was added: one message an attachment, and more of them for states that do not fit it.

        Returns the requests whose drafter lacks states of older tokens.
        """
        batches: dict[int, CommitBatch] = {}
        self._asks = any(committed.catch_up or committed.max_nodes > 1 for committed in commits)
        self.haste = commits[0].haste if commits else WaitUrgency.HURRIED
        now = self._clock()
        told: list[tuple[RoutedRequest, HiddenStateRows | None]] = []
        for committed in commits:
            running = self.running.get(committed.key)
            if running is not None:
                told.append((running, committed.features))
                self._end_step(running, committed, batches, now)
        for batch in batches.values():
            if not batch.put():
                for slot in batch.slots:
                    self._gap(batch.attachment, slot)
            batch.attachment.send(len(batch.records))
        self._make_room()
        behind: set[RequestKey] = set()
        for running, features in self._in_turn(told):
            for ref in running.slots:
                slot = ref.slot
                if features is not None and (slot.feed.sent_until < features.end or slot.session.open_deferred):
                    self._feed_states(running, ref, features, catch_up=slot.session.ever_requested)
                if ref is running.current_slot and slot.lacks_states:
                    behind.add(running.opening.key)
        return behind

    def _end_step(
        self, running: RoutedRequest, committed: Committed, batches: dict[int, CommitBatch], now: float
    ) -> None:
        tokens = committed.token_ids
        running.tokens.extend(tokens)
        slots = running.slots
        for ref in slots:
            ref.slot.end_step(tokens, committed.verified)
        if running.next_slot is not None:
            self._switch_drafter(running)
            slots = running.slots
        running.max_nodes, running.max_depth = committed.max_nodes, committed.max_depth
        if running.current_slot is None:
            self._bind(running, caught_up=False)
            return
        for ref in slots:
            self._feed(running, ref, committed, batches, now)

    def end(self, key: RequestKey, reason: FinishReason, verified: Sequence[VerifiedTree] = ()) -> None:
        """Close the request's slots, if it has any."""
        running = self.running.pop(key, None)
        for ref in [] if running is None else running.slots:
            ref.slot.count_verified(verified)
            self._release(ref, reason)

    def reopen(self, slot: Slot) -> None:
        """Open a slot's request again, under a new generation."""
        running = None if slot.key is None else self.running.get(slot.key)
        for ref in [] if running is None else running.slots:
            if running is not None and ref.slot is slot:
                self._open(running, ref, caught_up=False)

    def rebalance(self) -> None:
        """Attachments or their shares have changed: see that every request has, or gets, the drafter that is due."""
        for running in self.running.values():
            if running.current_slot is None:
                self._bind(running, caught_up=False)
            else:
                self._start_switch(running, running.current_slot)

    def fail_over(self, now: float) -> None:
        """Move requests of unresponsive drafters to others with the same proposer, and back after a message of theirs.

        A drafter without requests that was silent lately may be unresponsive too. Each of them is sent one request to
        catch up with as a heartbeat: its tree would be the message.
        """
        unresponsive = {each for each in self.live if each.circuit_breaker.is_unresponsive(now)}
        if unresponsive:
            drafting = {
                running.current_slot.attachment for running in self.running.values() if running.current_slot is not None
            }
            unresponsive |= {each for each in self.live if each.circuit_breaker.is_silent(now) and each not in drafting}
        if unresponsive != self._unresponsive:
            self._unresponsive = unresponsive
            self.rebalance()
        for attachment in unresponsive:
            if not attachment.slots.busy:
                self._send_heartbeat(attachment)

    def _send_heartbeat(self, attachment: Attachment) -> None:
        for running in self.running.values():
            offers = attachment.index_of(running.opening.proposer) is not None
            if offers and running.current_slot is not None and running.next_slot is None:
                running.next_slot = self._take(running, attachment)
                if running.next_slot is not None:
                    self._open(running, running.next_slot, caught_up=False)
                return

    def forget(self, attachment: Attachment) -> None:
        """An attachment is over: its requests go to another one that offers their proposer, or go on plainly."""
        self.attachments.pop(attachment.epoch, None)
        self._unresponsive.discard(attachment)
        for slot in attachment.slots.taken():
            running = None if slot.key is None else self.running.get(slot.key)
            if running is not None:
                kept = [ref for ref in running.slots if ref.slot is not slot]
                running.current_slot, running.next_slot = kept[0] if kept else None, None
            slot.close()
        self.rebalance()

    def _bind(self, running: RoutedRequest, *, caught_up: bool) -> None:
        """Open a slot with the drafter that is due, for a request without one."""
        running.current_slot = self._take(running, self._due(running))
        if running.current_slot is not None:
            self._open(running, running.current_slot, caught_up=caught_up)

    def _start_switch(self, running: RoutedRequest, ref: SlotRef) -> None:
        """Open the next slot with the drafter that is due, if the request has another one."""
        due, next_slot = self._due(running), running.next_slot
        if next_slot is not None and next_slot.attachment is not due:
            self._release(next_slot, None)
            running.next_slot = None
        if due is ref.attachment or running.next_slot is not None or (due and due.epoch == running.nacked_epoch):
            return
        running.next_slot = self._take(running, due)
        if running.next_slot is not None:
            self._open(running, running.next_slot, caught_up=False)

    def _switch_drafter(self, running: RoutedRequest) -> None:
        """Make the next slot the current one if its drafter has caught up; called at a step boundary."""
        next_slot = running.next_slot
        if next_slot is None or running.current_slot is None or next_slot.attachment in self._unresponsive:
            return
        if next_slot.slot.session.nacked:
            self._release(next_slot, None)
            running.next_slot, running.nacked_epoch = None, next_slot.attachment.epoch
        elif next_slot.slot.can_take_over:
            self._release(running.current_slot, None)
            running.current_slot, running.next_slot = next_slot, None

    def _due(self, running: RoutedRequest) -> Attachment | None:
        offering = self._offering(running.opening.proposer)
        return pick_by_weight(
            [each for each in offering if each not in self._unresponsive] or offering, running.routing_hash
        )

    def _offering(self, proposer: str) -> list[Attachment]:
        """Live attachments that offer a proposer, the newest first."""
        newest_first = reversed(self.attachments.values())
        return [each for each in newest_first if each.live and each.index_of(proposer) is not None]

    @staticmethod
    def _take(running: RoutedRequest, attachment: Attachment | None) -> SlotRef | None:
        slot = None if attachment is None else attachment.slots.take()
        if attachment is None or slot is None:
            return None
        return SlotRef(attachment, slot, attachment.index_of(running.opening.proposer) or 0)

    def _open(self, running: RoutedRequest, ref: SlotRef, *, caught_up: bool) -> None:
        """Open a request's slot, but in the middle only if it is its turn; one that wants states waits for a step's."""
        offer = ref.offer
        ref.slot.open(
            running.opening.key,
            ref.attachment.stats[ref.index],
            caught_up=caught_up,
            boundaries=offer.feature_boundaries,
            needs_states=offer.needs_states,
        )
        running.advance(ref)
        if caught_up or (not offer.feature_boundaries and running.may_reopen(ref)):
            self._announce(running, ref, running.opening.cached_length)
        else:
            ref.slot.session.open_deferred = True

    def _announce(self, running: RoutedRequest, ref: SlotRef, computed: int) -> None:
        """Send a slot's Open; the states before position `computed` come from what is kept of them, if at all."""
        opening, attachment, slot = running.opening, ref.attachment, ref.slot
        slot.session.open_deferred = False
        slot.feed.sent_until = reachable(opening.history, computed) if slot.feed.boundaries else opening.cached_length
        running.advance(ref)
        record = Open(
            stamp=slot.stamp,
            proposer=ref.index,
            token_ids=tuple(running.tokens),
            prompt_length=opening.prompt_length,
            sampling=opening.sampling,
            choice_index=opening.choice_index,
            tenant=opening.tenant,
            adapter_id=opening.adapter_id,
            cached_length=slot.feed.sent_until,
            max_nodes=slot.max_nodes,
            max_depth=slot.max_depth,
            request_id=opening.request_id,
        )
        if attachment.outbox.put((record,)):
            slot.session.in_sync = slot.session.opened = True
            slot.stats.partial_sessions += bool(slot.feed.boundaries and slot.feed.sent_until)
            attachment.outbox.forget_gap(slot.index)
        else:
            self._gap(attachment, slot)
        attachment.send(1)

    def _feed(
        self,
        running: RoutedRequest,
        ref: SlotRef,
        committed: Committed,
        batches: dict[int, CommitBatch],
        now: float,
    ) -> None:
        attachment, slot = ref.attachment, ref.slot
        slot.session.ever_requested |= committed.catch_up
        promised, slot.promised = slot.promised, None
        running.advance(ref)
        if promised is not None and committed.handed:
            slot.take_handed(promised)
            attachment.circuit_breaker.on_message(now)
        attachment.rate_limiter.refill_tokens()
        if slot.session.in_sync:
            batch = batches.get(attachment.epoch)
            if batch is None:
                batch = batches[attachment.epoch] = CommitBatch(attachment)
            batch.add(slot, committed)
            slot.ask(now)
        elif slot.session.open_deferred:
            if not slot.feed.boundaries and running.may_reopen(ref):
                self._announce(running, ref, running.opening.cached_length)
        elif attachment.outbox.has_gap(slot.index):
            self._gap(attachment, slot)

    def _in_turn(self, told: Sequence[T]) -> Iterator[T]:
        """All of it, from another start each time: the room for states does not always go to the same requests."""
        self._turn += 1
        start = self._turn % len(told) if told else 0
        yield from told[start:]
        yield from told[:start]

    def _make_room(self) -> None:
        for attachment in self.attachments.values():
            attachment.state_room = step_bytes(len(self.running))

    def _feed_states(self, running: RoutedRequest, ref: SlotRef, features: HiddenStateRows, *, catch_up: bool) -> None:
        """Bring a slot up to date with a step's states, and open it first if it waited for them.

        One for which no tree was asked yet need not catch up with older ones.
        """
        attachment, slot, history = ref.attachment, ref.slot, running.opening.history
        has_all = slot.feed.sent_until >= features.end and not slot.session.open_deferred
        if has_all or not slot.feed.boundaries or not features.has(slot.feed.boundaries):
            return
        if slot.session.open_deferred and running.may_reopen(ref):
            self._announce(running, ref, features.first)
        if slot.session.in_sync and not send_states(attachment, slot, history, features, catch_up=catch_up):
            self._gap(attachment, slot)
            attachment.send(1)

    def _release(self, ref: SlotRef, reason: FinishReason | None) -> None:
        attachment, slot = ref.attachment, ref.slot
        attachment.outbox.forget_gap(slot.index)
        if slot.session.opened:
            attachment.outbox.put_always(Close(slot.stamp, reason))
            attachment.send(1)
        attachment.slots.release(slot)

    def _gap(self, attachment: Attachment, slot: Slot) -> None:
        self.gaps += not attachment.outbox.has_gap(slot.index)
        slot.session.in_sync = False
        attachment.outbox.put_gap(Gap(slot.stamp, 1))
