"""Which attachment drafts for which request, and what each is fed. The draft link's lock guards all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from verify_service.attachments import Attachment
from verify_service.draft_records import Close, Command, Commit, Gap, Open
from verify_service.request import FinishReason, RequestKey
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
    place: Place | None = None


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
        for attachment in reversed(self.attachments.values()):
            if attachment.live and attachment.index_of(proposer) is not None:
                return attachment
        return None

    def place(self, key: RequestKey) -> Place | None:
        """Where a request's trees come from, None while it has no drafter or asks for no tree."""
        running = self.running.get(key)
        if running is None or running.place is None or running.place.slot.max_nodes <= 1:
            return None
        return running.place

    def begin(self, opening: Opening) -> None:
        """Take a request in; it goes to the attachment that offers its proposer, if there is one."""
        running = Running(opening, list(opening.token_ids))
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
            running.max_nodes, running.max_depth = committed.max_nodes, committed.max_depth
            if running.place is None:
                self._bind(running, caught_up=False)
            else:
                self._feed(running, running.place, committed, batches)
        for batch in batches.values():
            if not batch.attachment.outbox.put(batch.records):
                for slot in batch.slots:
                    self._gap(batch.attachment, slot)
            batch.attachment.send(len(batch.records))

    def end(self, key: RequestKey, reason: FinishReason) -> None:
        """Close the request's slot, if it has one."""
        running = self.running.pop(key, None)
        if running is not None and running.place is not None:
            self._release(running.place, reason)

    def reopen(self, slot: Slot) -> None:
        """Open a slot's request again, under a new generation."""
        running = None if slot.key is None else self.running.get(slot.key)
        if running is not None and running.place is not None:
            self._open(running, running.place, caught_up=False)

    def bind_all(self) -> None:
        """Give the requests that have no drafter one, where there is any."""
        for running in self.running.values():
            if running.place is None:
                self._bind(running, caught_up=False)

    def forget(self, attachment: Attachment) -> None:
        """An attachment is over: its requests go to another one that offers their proposer, or go on plainly."""
        self.attachments.pop(attachment.epoch, None)
        for slot in attachment.slots.taken():
            running = None if slot.key is None else self.running.get(slot.key)
            if running is not None:
                running.place = None
            slot.close()
        self.bind_all()

    def _bind(self, running: Running, *, caught_up: bool) -> None:
        """Give a request a slot of the newest attachment that offers its proposer; it stays there."""
        attachment = self.offering(running.opening.proposer)
        slot = None if attachment is None else attachment.slots.take()
        if attachment is None or slot is None:
            return
        running.place = Place(attachment, slot)
        self._open(running, running.place, caught_up=caught_up)

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

    def _release(self, place: Place, reason: FinishReason) -> None:
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
