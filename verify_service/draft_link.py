"""Trees from attached draft services: the verify loop's side of the exchange.

The loop's thread and the RPC thread meet here under one lock that is never held while anything waits or is sent.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slipstream.rpc.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    SlipstreamError,
    UnavailableError,
)
from slipstream_kernels.token_tree import InvalidTreeError, TokenTree
from verify_service.attachments import MAX_ATTACHMENTS, Attachment, check_token, negotiate
from verify_service.draft_records import (
    AttachReply,
    AttachRequest,
    Close,
    Command,
    Commit,
    Gap,
    LinkFacts,
    Nack,
    Open,
    Reply,
    Resume,
    TreeReply,
)
from verify_service.link_types import AUTO, LinkConfig, LinkState, ProposerStatus
from verify_service.outbox import Outbox
from verify_service.request import FinishReason, RequestKey
from verify_service.slots import Slot, SlotTable
from verify_service.tree_source import Committed, Opening

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Running:
    """A request between begin and end, with all that a drafter needs to be brought up to date."""

    opening: Opening
    tokens: list[int]
    max_nodes: int = 1
    max_depth: int = 0
    attachment: Attachment | None = None
    slot: Slot | None = None


class DraftLink:
    """A TreeSource fed by draft services. `on_wait` is told of each wait for trees, in seconds."""

    def __init__(
        self,
        facts: LinkFacts,
        config: LinkConfig,
        *,
        on_wait: Callable[[float], None] | None = None,
        first_epoch: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.facts = facts
        self.config = config
        self._on_wait = on_wait
        self._clock = clock
        self._changed = threading.Condition(threading.Lock())
        self._running: dict[RequestKey, _Running] = {}
        self._attachments: dict[int, Attachment] = {}
        # Epochs of an earlier life of this service must not be taken for ours.
        self._next_epoch = secrets.randbits(48) + 1 if first_epoch is None else first_epoch
        self._closed: SlipstreamError | None = None
        self._waits = self._misses = self._stale = self._malformed = self._gaps = 0

    # --- The verify loop's thread ------------------------------------------------------------------------------

    def known(self, name: str) -> bool:
        """Whether a proposer of this name is configured or attached."""
        with self._changed:
            return name in self.config.configured or self._offering(name) is not None

    def default(self) -> str | None:
        """The operator's default proposer, None for no speculation."""
        if self.config.default != AUTO:
            return self.config.default
        if self.config.configured:
            return self.config.configured[0]
        with self._changed:
            live = [attachment for attachment in self._attachments.values() if attachment.live]
            return live[0].request.offers[0].name if live else None

    def begin(self, opening: Opening) -> None:
        """Hand a request to the attachment that offers its proposer, if there is one."""
        with self._changed:
            running = _Running(opening, list(opening.token_ids))
            self._running[opening.key] = running
            self._bind(running, caught_up=True)

    def commit(self, commits: Sequence[Committed]) -> None:
        """Tell each attachment what this step added, in one message."""
        batches: dict[int, tuple[Attachment, list[Command], list[Slot]]] = {}
        with self._changed:
            for committed in commits:
                running = self._running.get(committed.key)
                if running is None:
                    continue
                running.tokens.extend(committed.token_ids)
                running.max_nodes, running.max_depth = committed.max_nodes, committed.max_depth
                if running.slot is None or running.attachment is None:
                    self._bind(running, caught_up=False)
                    continue
                slot = self._stand(running, running.attachment, running.slot)
                if slot.fed:
                    batch = batches.setdefault(slot.epoch, (running.attachment, [], []))
                    batch[1].append(Commit(slot.stamp, committed.token_ids, slot.max_nodes, slot.max_depth))
                    batch[2].append(slot)
                elif running.attachment.outbox.has_gap(slot.index):
                    self._gap(running.attachment, slot)
            for attachment, records, slots in batches.values():
                if not attachment.outbox.put(records):
                    for slot in slots:
                        self._gap(attachment, slot)
                self._wake(attachment)

    def collect(self, wanted: Sequence[RequestKey]) -> list[TokenTree | None]:
        """The newest fitting tree of each request; waits to the deadline for those that may still come."""
        with self._changed:
            places = [self._place(key) for key in wanted]
            begun = now = self._clock()
            patient = {place[0].epoch for place in places if place and place[0].patience.waits(now)}
            awaited = [place[1] for place in places if place and place[0].epoch in patient and place[1].awaited]
            if awaited:
                until = begun + self.config.deadline
                while awaited and (left := until - now) > 0:
                    self._changed.wait(left)
                    now = self._clock()
                    awaited = [slot for slot in awaited if slot.awaited]
                self._waits += 1
                self._misses += len(awaited)
                if self._on_wait is not None:
                    self._on_wait(now - begun)
            self._learn(places, patient, now)
            trees = [place[1].tree if place else None for place in places]
        return [tree or None for tree in trees]

    def expects(self, keys: Sequence[RequestKey]) -> bool:
        """Whether any of these requests has a drafter that would be waited for."""
        with self._changed:
            bound = [(one.attachment, one.slot) for key in keys if (one := self._running.get(key))]
            return any(at and slot and slot.drafted_for and at.patience.waits(self._clock()) for at, slot in bound)

    def end(self, key: RequestKey, reason: FinishReason) -> None:
        """Close the request's slot, if it has one."""
        with self._changed:
            running = self._running.pop(key, None)
            if running is None or running.attachment is None or running.slot is None:
                return
            attachment, slot = running.attachment, running.slot
            attachment.outbox.forget_gap(slot.index)
            if slot.announced:
                attachment.outbox.put_always(Close(slot.stamp, reason))
                self._wake(attachment)
            attachment.slots.release(slot)

    # --- The RPC thread ----------------------------------------------------------------------------------------

    def attach(self, request: AttachRequest, *, loopback: bool) -> AttachReply:
        """Register a draft service; raises as DraftLinkService.Attach is documented to fail."""
        check_token(request, expected=self.config.attach_token, loopback=loopback)
        version, transport = negotiate(request, self.facts)
        with self._changed:
            if self._closed is not None:
                raise self._closed
            if len(self._attachments) >= MAX_ATTACHMENTS:
                raise ResourceExhaustedError(f"{MAX_ATTACHMENTS} draft services are attached, no more are taken")
            epoch = self._next_epoch
            self._next_epoch += 1
            slots = SlotTable(epoch, self.config.num_slots)
            self._attachments[epoch] = Attachment(epoch, request, transport, slots, Outbox(self.config.outbox_limit))
        _log.info("attached epoch %d: %s, proposers %s", epoch, _named(request), [o.name for o in request.offers])
        return AttachReply(version, epoch, transport, self.config.num_slots, round(self.config.deadline * 1e6))

    def start(self, epoch: int, wake: Callable[[], None]) -> Attachment:
        """Begin the exchange of an attachment and bring it up to date with the requests that run.

        NotFoundError for an unknown epoch, FailedPreconditionError if its exchange has begun before.
        """
        with self._changed:
            attachment = self._attachments.get(epoch)
            if attachment is None:
                raise NotFoundError(f"no attachment has epoch {epoch}")
            if attachment.wake is not None:
                raise FailedPreconditionError(f"the exchange of epoch {epoch} is open already")
            attachment.wake = wake
            self._bind_all()
            return attachment

    def take(self, attachment: Attachment) -> tuple[Command, ...]:
        """The next records to send in one message; empty if there are none. Raises why the attachment has ended."""
        with self._changed:
            if attachment.ended is not None:
                raise attachment.ended
            return attachment.outbox.take()

    def receive(self, attachment: Attachment, replies: Sequence[Reply]) -> None:
        """Take in what a drafter sent. InvalidArgumentError for a malformed record; the caller must `drop` then."""
        with self._changed:
            if attachment.ended is not None:
                return
            resumed: set[int] = set()
            for reply in replies:
                slot = attachment.slots.matching(reply.stamp)
                if slot is None or (isinstance(reply, Resume) and slot.index in resumed):
                    self._stale += 1
                elif isinstance(reply, TreeReply):
                    self._take_tree(attachment, slot, reply)
                elif isinstance(reply, Resume):
                    resumed.add(slot.index)
                    self._reopen(attachment, slot)
                else:
                    self._refuse(slot, reply)
            self._changed.notify_all()

    def drop(self, attachment: Attachment, reason: SlipstreamError) -> None:
        """End an attachment; its requests go on plainly or with another one that offers their proposer. Idempotent."""
        with self._changed:
            if attachment.ended is not None:
                return
            attachment.ended = reason
            if isinstance(reason, InvalidArgumentError):
                self._malformed += 1
            self._attachments.pop(attachment.epoch, None)
            for slot in attachment.slots.taken():
                running = self._running[slot.key] if slot.key is not None else None
                if running is not None:
                    running.attachment = running.slot = None
                slot.close()
            self._bind_all()
            self._wake(attachment)
            self._changed.notify_all()
        _log.info("detached epoch %d: %s: %s", attachment.epoch, _named(attachment.request), reason.message)

    def expire(self, epoch: int) -> None:
        """Drop an attachment whose exchange has not begun."""
        with self._changed:
            attachment = self._attachments.get(epoch)
        if attachment is not None and attachment.wake is None:
            self.drop(attachment, UnavailableError("the exchange was not opened in time"))

    def refuse_attachments(self) -> None:
        """Take no more draft services: the service drains."""
        with self._changed:
            self._closed = UnavailableError("the verify service drains")

    def close(self) -> None:
        """Drop all draft services and take no more: the service stops."""
        self.refuse_attachments()
        with self._changed:
            attachments = list(self._attachments.values())
        for attachment in attachments:
            self.drop(attachment, UnavailableError("the verify service stops"))

    def state(self) -> LinkState:
        """Counters of the moment."""
        with self._changed:
            live = sum(attachment.live for attachment in self._attachments.values())
            return LinkState(live, self._waits, self._misses, self._stale, self._malformed, self._gaps)

    def proposers(self) -> list[ProposerStatus]:
        """Configured names first, then those that are attached only."""
        with self._changed:
            live = [attachment for attachment in self._attachments.values() if attachment.live]
            offered = [offer.name for attachment in live for offer in attachment.request.offers]
            names = dict.fromkeys((*self.config.configured, *offered))
            return [ProposerStatus(name, name in self.config.configured, self._offering(name)) for name in names]

    # --- Under the lock ----------------------------------------------------------------------------------------

    def _offering(self, proposer: str) -> Attachment | None:
        """The newest live attachment that offers a proposer."""
        for attachment in reversed(self._attachments.values()):
            if attachment.live and attachment.index_of(proposer) is not None:
                return attachment
        return None

    def _place(self, key: RequestKey) -> tuple[Attachment, Slot] | None:
        running = self._running.get(key)
        if running is None or running.attachment is None or running.slot is None or running.slot.max_nodes <= 1:
            return None
        return running.attachment, running.slot

    def _learn(self, places: Sequence[tuple[Attachment, Slot] | None], patient: set[int], now: float) -> None:
        """A step in which every tree was there counts as a hit; one that waited in vain counts as a miss."""
        complete: dict[int, bool] = {}
        attachments: dict[int, Attachment] = {}
        for place in places:
            if place is not None and not place[0].ended:
                attachments[place[0].epoch] = place[0]
                complete[place[0].epoch] = complete.get(place[0].epoch, True) and not place[1].awaited
        for epoch, attachment in attachments.items():
            if complete[epoch]:
                attachment.patience.hit()
            elif epoch in patient:
                attachment.patience.miss(now)

    def _bind_all(self) -> None:
        for running in self._running.values():
            if running.slot is None:
                self._bind(running, caught_up=False)

    def _bind(self, running: _Running, *, caught_up: bool) -> None:
        """Give a request a slot of the newest attachment that offers its proposer; it stays there."""
        attachment = self._offering(running.opening.proposer)
        slot = None if attachment is None else attachment.slots.take()
        if attachment is None or slot is None:
            return
        running.attachment, running.slot = attachment, slot
        self._open(running, attachment, slot, caught_up=caught_up)

    def _open(self, running: _Running, attachment: Attachment, slot: Slot, *, caught_up: bool) -> None:
        opening = running.opening
        slot.open(opening.key, caught_up=caught_up)
        self._stand(running, attachment, slot)
        record = Open(
            stamp=slot.stamp,
            proposer=attachment.index_of(opening.proposer) or 0,
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
        self._wake(attachment)

    def _stand(self, running: _Running, attachment: Attachment, slot: Slot) -> Slot:
        index = attachment.index_of(running.opening.proposer) or 0
        offer = attachment.request.offers[index]
        slot.stand_at(len(running.tokens), running.tokens[-1], running.max_nodes, running.max_depth, offer)
        return slot

    def _gap(self, attachment: Attachment, slot: Slot) -> None:
        self._gaps += not attachment.outbox.has_gap(slot.index)
        slot.fed = False
        attachment.outbox.put_gap(Gap(slot.stamp, 1))

    def _take_tree(self, attachment: Attachment, slot: Slot, reply: TreeReply) -> None:
        slot.caught_up = True
        if reply.stamp != slot.stamp:
            self._stale += 1
            return
        if reply.sources and len(reply.sources) != len(reply.tree):
            raise InvalidArgumentError(f"{len(reply.tree)} token_ids but {len(reply.sources)} sources", field="sources")
        if any(source >= len(attachment.request.offers) for source in reply.sources):
            raise InvalidArgumentError(f"sources must be below {len(attachment.request.offers)}", field="sources")
        try:
            reply.tree.validate(
                vocab_size=self.facts.vocab_size, max_nodes=slot.max_nodes - 1, max_depth=slot.max_depth
            )
        except InvalidTreeError as error:
            raise InvalidArgumentError(f"malformed tree: {error}", field="tree") from error
        slot.tree = reply.tree

    def _reopen(self, attachment: Attachment, slot: Slot) -> None:
        running = self._running.get(slot.key) if slot.key is not None else None
        if running is not None:
            self._open(running, attachment, slot, caught_up=False)

    @staticmethod
    def _refuse(slot: Slot, nack: Nack) -> None:
        if slot.refused:
            return
        slot.refused = True
        _log.info("slot %d of epoch %d will get no trees: %r", slot.index, slot.epoch, nack.reason[:200])

    @staticmethod
    def _wake(attachment: Attachment) -> None:
        if attachment.wake is not None:
            attachment.wake()


def _named(request: AttachRequest) -> str:
    return f"{request.name[:80]!r} (process {request.process_id}, {request.address[:80]!r})"
