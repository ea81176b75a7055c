"""Which attachment drafts for which request, and what each is fed. The draft link's lock guards all of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from slipstream.generation_types import FinishReason
from verify_service.core.draft_source import Committed, Opening, StateChunk, StateSpan, WaitUrgency
from verify_service.core.request import RequestKey
from verify_service.draft_link.attachment import Attachment, offered_by
from verify_service.draft_link.commit_batch import CommitBatch
from verify_service.draft_link.hidden_state_feed import reachable, send_states, step_bytes
from verify_service.draft_link.records import Close, Gap, Offer, Open
from verify_service.draft_link.slot import Slot
from verify_service.draft_link.traffic_weight import pick_by_weight, routing_hash
from verify_service.hidden_states.device_ring import RingSlice
from verify_service.hidden_states.rows import HiddenStateRows

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class SlotRef:
    """A request's slot of one attachment."""

    attachment: Attachment
    slot: Slot


@dataclass(slots=True, eq=False)
class RoutedRequest:
    """A request between begin and end, with all that a drafter needs to be brought up to date."""

    opening: Opening
    tokens: list[int]
    max_nodes: int = 1
    max_depth: int = 0
    draw: float = 0.0
    place: SlotRef | None = None
    successor: SlotRef | None = None
    """Where the request goes once that drafter has caught up; fed beside `place` until then."""
    declined: int = 0
    """Epoch of an attachment that would not take the request over."""

    @property
    def places(self) -> list[SlotRef]:
        """All that is fed."""
        return [place for place in (self.place, self.successor) if place is not None]


class DraftRouter:
    """All requests that began, all attachments, and the slots in between."""

    __slots__ = ("_asks", "_clock", "_hanging", "_turn", "attachments", "gaps", "haste", "running")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.haste = WaitUrgency.HURRIED
        """That of the next step, as the last commit has it."""
        self.running: dict[RequestKey, RoutedRequest] = {}
        self.attachments: dict[int, Attachment] = {}
        self.gaps = 0
        self._turn = 0
        self._hanging: set[Attachment] = set()
        """Those that hang, as last seen, and such of which it is not known whether they do."""
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
        return [running.successor.attachment for running in self.running.values() if running.successor is not None]

    def place(self, key: RequestKey) -> SlotRef | None:
        """Where a request's trees come from, None while it has no drafter or asks for no tree."""
        running = self.running.get(key)
        if running is None or running.place is None or running.place.slot.max_nodes <= 1:
            return None
        return running.place

    def places(self, keys: Iterable[RequestKey]) -> list[SlotRef]:
        """Those of all these requests that have a drafter."""
        found = (self.running[key].place for key in keys if key in self.running)
        return [place for place in found if place is not None]

    def cache_taken(self, commits: Sequence[Committed]) -> list[SlotRef]:
        """Slots whose speculation cache was taken for a step in flight."""
        return [place for place in self.places(each.key for each in commits) if place.slot.cache_taken]

    def begin(self, opening: Opening) -> None:
        """Take a request in; it goes to the attachment that offers its proposer, if there is one."""
        running = RoutedRequest(opening, list(opening.token_ids), draw=routing_hash(opening))
        self.running[opening.key] = running
        self._bind(running, caught_up=True)

    def wanted_boundaries(self) -> set[int]:
        """Those whose states any attachment wants."""
        offers = (offer for attachment in self.live for offer in attachment.request.offers)
        return {boundary for offer in offers for boundary in offer.feature_boundaries}

    def route(
        self, wanted: Sequence[StateSpan], captured: Sequence[int], hidden_size: int
    ) -> list[tuple[RingSlice, ...]]:
        """Room for states of each of `wanted`, in the rings of the drafters that take them from the device."""
        routes: list[tuple[RingSlice, ...]] = []
        for key, first, count in wanted:
            running = self.running.get(key)
            spans = [
                place.attachment.ring.reserve(place.slot, first, count, hidden_size)
                for place in ([] if running is None else running.places)
                if place.attachment.ring and place.slot.boundaries and set(place.slot.boundaries) <= set(captured)
            ]
            routes.append(tuple(span for span in spans if span is not None))
        return routes

    def extend(self, chunks: Sequence[StateChunk]) -> None:
        """Feed states of tokens that requests had before."""
        self._make_room()
        for key, features in self._in_turn(chunks):
            running = self.running.get(key)
            for place in [] if running is None else running.places:
                if running is not None:
                    self._feed_states(running, place, features, catch_up=self._asks or place.slot.ever_requested)

    def commit(self, commits: Sequence[Committed]) -> set[RequestKey]:
        """Feed what was added: one message an attachment, and more of them for states that do not fit it.

        Returns the requests whose drafter lacks states of older tokens.
        """
        batches: dict[int, CommitBatch] = {}
        self._asks = any(committed.catch_up or committed.max_nodes > 1 for committed in commits)
        self.haste = commits[0].haste if commits else WaitUrgency.HURRIED
        for committed in commits:
            running = self.running.get(committed.key)
            if running is None:
                continue
            running.tokens.extend(committed.token_ids)
            for place in running.places:
                place.slot.end_step(committed.token_ids)
            self._hand_over(running)
            running.max_nodes, running.max_depth = committed.max_nodes, committed.max_depth
            if running.place is None:
                self._bind(running, caught_up=False)
            else:
                for place in running.places:
                    self._feed(running, place, committed, batches)
        for batch in batches.values():
            if not batch.put():
                for slot in batch.slots:
                    self._gap(batch.attachment, slot)
            batch.attachment.send(len(batch.records))
        self._make_room()
        for committed in self._in_turn(commits):
            if committed.features is not None and (running := self.running.get(committed.key)) is not None:
                for place in running.places:
                    self._feed_states(running, place, committed.features, catch_up=place.slot.ever_requested)
        places = [(key, running.place) for key, *_ in commits if (running := self.running.get(key)) is not None]
        return {key for key, place in places if place is not None and place.slot.lacks_states}

    def end(self, key: RequestKey, reason: FinishReason) -> None:
        """Close the request's slots, if it has any."""
        running = self.running.pop(key, None)
        for place in [] if running is None else running.places:
            self._release(place, reason)

    def reopen(self, slot: Slot) -> None:
        """Open a slot's request again, under a new generation."""
        running = None if slot.key is None else self.running.get(slot.key)
        for place in [] if running is None else running.places:
            if running is not None and place.slot is slot:
                self._open(running, place, caught_up=False)

    def rebalance(self) -> None:
        """Attachments or their shares have changed: see that every request has, or gets, the drafter that is due."""
        for running in self.running.values():
            if running.place is None:
                self._bind(running, caught_up=False)
            else:
                self._prepare(running, running.place)

    def heed_hangs(self, now: float) -> None:
        """Requests of drafters that hang go to others that offer their proposer, and back once these are heard again.

        Who stands by, and has said nothing lately, may hang as well. Each of them all is told of one request to catch
        up with, whose tree is what it is heard by.
        """
        hanging = {each for each in self.live if each.circuit_breaker.is_unresponsive(now)}
        if hanging:
            drafting = {running.place.attachment for running in self.running.values() if running.place is not None}
            hanging |= {each for each in self.live if each.circuit_breaker.is_silent(now) and each not in drafting}
        if hanging != self._hanging:
            self._hanging = hanging
            self.rebalance()
        for attachment in hanging:
            if not attachment.slots.busy:
                self._keep_one(attachment)

    def _keep_one(self, attachment: Attachment) -> None:
        for running in self.running.values():
            offers = attachment.index_of(running.opening.proposer) is not None
            if offers and running.place is not None and running.successor is None:
                running.successor = self._take(attachment)
                if running.successor is not None:
                    self._open(running, running.successor, caught_up=False)
                return

    def forget(self, attachment: Attachment) -> None:
        """An attachment is over: its requests go to another one that offers their proposer, or go on plainly."""
        self.attachments.pop(attachment.epoch, None)
        self._hanging.discard(attachment)
        for slot in attachment.slots.taken():
            running = None if slot.key is None else self.running.get(slot.key)
            if running is not None:
                kept = [place for place in running.places if place.slot is not slot]
                running.place, running.successor = kept[0] if kept else None, None
            slot.close()
        self.rebalance()

    def _bind(self, running: RoutedRequest, *, caught_up: bool) -> None:
        """Give a request that has no drafter the one that is due."""
        running.place = self._take(self._due(running))
        if running.place is not None:
            self._open(running, running.place, caught_up=caught_up)

    def _prepare(self, running: RoutedRequest, place: SlotRef) -> None:
        """Have the drafter that is due catch up, if that is another one than the request has."""
        due, successor = self._due(running), running.successor
        if successor is not None and successor.attachment is not due:
            self._release(successor, None)
            running.successor = None
        if due is place.attachment or running.successor is not None or (due and due.epoch == running.declined):
            return
        running.successor = self._take(due)
        if running.successor is not None:
            self._open(running, running.successor, caught_up=False)

    def _hand_over(self, running: RoutedRequest) -> None:
        """At a step boundary: let the successor take over if it has caught up."""
        successor = running.successor
        if successor is None or running.place is None or successor.attachment in self._hanging:
            return
        if successor.slot.nacked:
            self._release(successor, None)
            running.successor, running.declined = None, successor.attachment.epoch
        elif successor.slot.can_take_over:
            self._release(running.place, None)
            running.place, running.successor = successor, None

    def _due(self, running: RoutedRequest) -> Attachment | None:
        offering = self._offering(running.opening.proposer)
        return pick_by_weight([each for each in offering if each not in self._hanging] or offering, running.draw)

    def _offering(self, proposer: str) -> list[Attachment]:
        """Live attachments that offer a proposer, the newest first."""
        newest_first = reversed(self.attachments.values())
        return [each for each in newest_first if each.live and each.index_of(proposer) is not None]

    @staticmethod
    def _take(attachment: Attachment | None) -> SlotRef | None:
        slot = None if attachment is None else attachment.slots.take()
        return None if attachment is None or slot is None else SlotRef(attachment, slot)

    def _open(self, running: RoutedRequest, place: SlotRef, *, caught_up: bool) -> None:
        """Open a request's slot, but in the middle only if it is its turn; one that wants states waits for a step's."""
        index, offer = self._offer(running, place)
        place.slot.open(
            running.opening.key,
            place.attachment.stats[index],
            caught_up=caught_up,
            boundaries=offer.feature_boundaries,
            max_ahead=0 if offer.lockstep else place.attachment.slots.max_ahead,
            waits=offer.lockstep or place.attachment.slots.waits,
            needs_states=offer.needs_states,
        )
        self._stand(running, place)
        if caught_up or (not offer.feature_boundaries and self._opens(running, place)):
            self._announce(running, place, running.opening.cached_length)
        else:
            place.slot.open_deferred = True

    @staticmethod
    def _opens(running: RoutedRequest, place: SlotRef) -> bool:
        return place.attachment.rate_limiter.try_reopen(len(running.tokens))

    def _announce(self, running: RoutedRequest, place: SlotRef, computed: int) -> None:
        """Send a slot's Open; the states before position `computed` come from what is kept of them, if at all."""
        opening, attachment, slot = running.opening, place.attachment, place.slot
        slot.open_deferred = False
        slot.states_sent_until = reachable(opening.history, computed) if slot.boundaries else opening.cached_length
        self._stand(running, place)
        record = Open(
            stamp=slot.stamp,
            proposer=self._offer(running, place)[0],
            token_ids=tuple(running.tokens),
            prompt_length=opening.prompt_length,
            sampling=opening.sampling,
            choice_index=opening.choice_index,
            tenant=opening.tenant,
            adapter_id=opening.adapter_id,
            cached_length=slot.states_sent_until,
            max_nodes=slot.max_nodes,
            max_depth=slot.max_depth,
        )
        if attachment.outbox.put((record,)):
            slot.in_sync = slot.opened = True
            attachment.outbox.forget_gap(slot.index)
        else:
            self._gap(attachment, slot)
        attachment.send(1)

    def _feed(
        self, running: RoutedRequest, place: SlotRef, committed: Committed, batches: dict[int, CommitBatch]
    ) -> None:
        attachment, slot = place.attachment, place.slot
        slot.ever_requested |= committed.catch_up
        begun = slot.cache_taken
        self._stand(running, place)
        if begun:
            slot.begin_step(committed.tree)
        attachment.rate_limiter.refill_tokens()
        if slot.in_sync:
            batches.setdefault(attachment.epoch, CommitBatch(attachment)).add(slot, committed)
            slot.ask(self._clock())
        elif slot.open_deferred:
            if not slot.boundaries and self._opens(running, place):
                self._announce(running, place, running.opening.cached_length)
        elif attachment.outbox.has_gap(slot.index):
            self._gap(attachment, slot)

    def _in_turn(self, told: Sequence[T]) -> Iterator[T]:
        """All of it, from another place on each time: the room for states does not always go to the same requests."""
        self._turn += 1
        start = self._turn % len(told) if told else 0
        yield from told[start:]
        yield from told[:start]

    def _make_room(self) -> None:
        for attachment in self.attachments.values():
            attachment.state_room = step_bytes(len(self.running))

    def _feed_states(
        self, running: RoutedRequest, place: SlotRef, features: HiddenStateRows, *, catch_up: bool
    ) -> None:
        """Bring a slot up to date with a step's states, and open it first if it waited for them.

        One for which no tree was asked yet need not catch up with older ones.
        """
        slot = place.slot
        if not slot.boundaries or not features.has(slot.boundaries):
            return
        if slot.open_deferred and self._opens(running, place):
            self._announce(running, place, features.first)
        if slot.in_sync and not send_states(
            place.attachment, slot, running.opening.history, features, catch_up=catch_up
        ):
            self._gap(place.attachment, slot)
            place.attachment.send(1)

    @staticmethod
    def _offer(running: RoutedRequest, place: SlotRef) -> tuple[int, Offer]:
        """What the place's drafter offers for the request."""
        index = place.attachment.index_of(running.opening.proposer) or 0
        return index, place.attachment.request.offers[index]

    def _stand(self, running: RoutedRequest, place: SlotRef) -> None:
        _, offer = self._offer(running, place)
        place.slot.advance_to(len(running.tokens), running.tokens[-1], running.max_nodes, running.max_depth, offer)

    def _release(self, place: SlotRef, reason: FinishReason | None) -> None:
        attachment, slot = place.attachment, place.slot
        attachment.outbox.forget_gap(slot.index)
        if slot.opened:
            attachment.outbox.put_always(Close(slot.stamp, reason))
            attachment.send(1)
        attachment.slots.release(slot)

    def _gap(self, attachment: Attachment, slot: Slot) -> None:
        self.gaps += not attachment.outbox.has_gap(slot.index)
        slot.in_sync = False
        attachment.outbox.put_gap(Gap(slot.stamp, 1))
