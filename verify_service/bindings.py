"""Which attachment drafts for which request, and what each is fed. The draft link's lock guards all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from verify_service.attachments import Attachment
from verify_service.draft_records import Close, Command, Commit, Gap, Open
from verify_service.request import FinishReason, RequestKey
from verify_service.share import choose, draw
from verify_service.slots import Slot
from verify_service.tree_source import Committed, Opening


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A request's slot of one attachment."""

    attachment: Attachment
    slot: Slot


@dataclass(slots=True, eq=False)
class Running:
    """A request between begin and end, with all that a drafter needs to be brought up to date."""

    opening: Opening
    tokens: list[int]
    max_nodes: int = 1
    max_depth: int = 0
    draw: float = 0.0
    place: Place | None = None
    successor: Place | None = None
    """Where the request goes once that drafter has caught up; fed beside `place` until then."""
    declined: int = 0
    """Epoch of an attachment that would not take the request over."""

    @property
    def places(self) -> list[Place]:
        """All that is fed."""
        return [place for place in (self.place, self.successor) if place is not None]


@dataclass(slots=True, eq=False)
class _Batch:
    """What one step says to one attachment, in one message."""

    attachment: Attachment
    records: list[Command] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)


class Bindings:
    """All requests that began, all attachments, and the slots in between."""

    __slots__ = ("attachments", "gaps", "running")

    def __init__(self) -> None:
        self.running: dict[RequestKey, Running] = {}
        self.attachments: dict[int, Attachment] = {}
        self.gaps = 0

    @property
    def live(self) -> list[Attachment]:
        """Attachments whose exchange is open, the oldest first."""
        return [attachment for attachment in self.attachments.values() if attachment.live]

    def offering(self, proposer: str) -> Attachment | None:
        """The newest live attachment that offers a proposer."""
        return next(iter(self._offering(proposer)), None)

    @property
    def catching_up(self) -> list[Attachment]:
        """Attachments that are about to take requests over, once for each request."""
        return [running.successor.attachment for running in self.running.values() if running.successor is not None]

    def place(self, key: RequestKey) -> Place | None:
        """Where a request's trees come from, None while it has no drafter or asks for no tree."""
        running = self.running.get(key)
        if running is None or running.place is None or running.place.slot.max_nodes <= 1:
            return None
        return running.place

    def begin(self, opening: Opening) -> None:
        """Take a request in; it goes to the attachment that offers its proposer, if there is one."""
        running = Running(opening, list(opening.token_ids), draw=draw(opening))
        self.running[opening.key] = running
        self._bind(running, caught_up=True)

    def commit(self, commits: Sequence[Committed]) -> None:
        """Feed what one step added: one message an attachment."""
        batches: dict[int, _Batch] = {}
        for committed in commits:
            running = self.running.get(committed.key)
            if running is None:
                continue
            running.tokens.extend(committed.token_ids)
            if running.place is not None:
                running.place.slot.settle(committed.token_ids)
            self._hand_over(running)
            running.max_nodes, running.max_depth = committed.max_nodes, committed.max_depth
            if running.place is None:
                self._bind(running, caught_up=False)
            else:
                for place in running.places:
                    self._feed(running, place, committed, batches)
        for batch in batches.values():
            if not batch.attachment.outbox.put(batch.records):
                for slot in batch.slots:
                    self._gap(batch.attachment, slot)
            batch.attachment.send(len(batch.records))

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

    def forget(self, attachment: Attachment) -> None:
        """An attachment is over: its requests go to another one that offers their proposer, or go on plainly."""
        self.attachments.pop(attachment.epoch, None)
        for slot in attachment.slots.taken():
            running = None if slot.key is None else self.running.get(slot.key)
            if running is not None:
                kept = [place for place in running.places if place.slot is not slot]
                running.place, running.successor = kept[0] if kept else None, None
            slot.close()
        self.rebalance()

    def _bind(self, running: Running, *, caught_up: bool) -> None:
        """Give a request that has no drafter the one that is due."""
        running.place = self._take(self._due(running))
        if running.place is not None:
            self._open(running, running.place, caught_up=caught_up)

    def _prepare(self, running: Running, place: Place) -> None:
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

    def _hand_over(self, running: Running) -> None:
        """At a step boundary: let the successor take over if it has caught up."""
        successor = running.successor
        if successor is None or running.place is None:
            return
        if successor.slot.refused:
            self._release(successor, None)
            running.successor, running.declined = None, successor.attachment.epoch
        elif successor.slot.takes_over:
            self._release(running.place, None)
            running.place, running.successor = successor, None

    def _due(self, running: Running) -> Attachment | None:
        return choose(self._offering(running.opening.proposer), running.draw)

    def _offering(self, proposer: str) -> list[Attachment]:
        """Live attachments that offer a proposer, the newest first."""
        newest_first = reversed(self.attachments.values())
        return [each for each in newest_first if each.live and each.index_of(proposer) is not None]

    @staticmethod
    def _take(attachment: Attachment | None) -> Place | None:
        slot = None if attachment is None else attachment.slots.take()
        return None if attachment is None or slot is None else Place(attachment, slot)

    def _open(self, running: Running, place: Place, *, caught_up: bool) -> None:
        opening, attachment, slot = running.opening, place.attachment, place.slot
        index = attachment.index_of(opening.proposer) or 0
        slot.open(opening.key, attachment.tallies[index], caught_up=caught_up)
        self._stand(running, place)
        record = Open(
            stamp=slot.stamp,
            proposer=index,
            token_ids=tuple(running.tokens),
            prompt_length=opening.prompt_length,
            sampling=opening.sampling,
            choice_index=opening.choice_index,
            tenant=opening.tenant,
            adapter_id=opening.adapter_id,
            cached_length=opening.cached_length,
            max_nodes=slot.max_nodes,
            max_depth=slot.max_depth,
        )
        if attachment.outbox.put((record,)):
            slot.fed = slot.announced = True
            attachment.outbox.forget_gap(slot.index)
        else:
            self._gap(attachment, slot)
        attachment.send(1)

    def _feed(self, running: Running, place: Place, committed: Committed, batches: dict[int, _Batch]) -> None:
        attachment, slot = place.attachment, place.slot
        self._stand(running, place)
        if slot.fed:
            batch = batches.setdefault(attachment.epoch, _Batch(attachment))
            batch.records.append(Commit(slot.stamp, committed.token_ids, slot.max_nodes, slot.max_depth))
            batch.slots.append(slot)
        elif attachment.outbox.has_gap(slot.index):
            self._gap(attachment, slot)

    def _stand(self, running: Running, place: Place) -> None:
        index = place.attachment.index_of(running.opening.proposer) or 0
        offer = place.attachment.request.offers[index]
        place.slot.stand_at(len(running.tokens), running.tokens[-1], running.max_nodes, running.max_depth, offer)

    def _release(self, place: Place, reason: FinishReason | None) -> None:
        attachment, slot = place.attachment, place.slot
        attachment.outbox.forget_gap(slot.index)
        if slot.announced:
            attachment.outbox.put_always(Close(slot.stamp, reason))
            attachment.send(1)
        attachment.slots.release(slot)

    def _gap(self, attachment: Attachment, slot: Slot) -> None:
        self.gaps += not attachment.outbox.has_gap(slot.index)
        slot.fed = False
        attachment.outbox.put_gap(Gap(slot.stamp, 1))
