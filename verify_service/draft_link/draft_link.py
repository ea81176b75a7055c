"""Trees from attached draft services: the verify loop's side of the exchange.

The loop's thread and the RPC thread meet here under one lock that is never held while anything waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial

from slipstream.generation_types import FinishReason
from slipstream.rpc.errors import SlipstreamError, UnavailableError
from slipstream_kernels.draft_protocol.proposer_host import IN_PROCESS
from slipstream_kernels.draft_protocol.records import Reply, RoundCost
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.acceptance import VerifiedTree
from verify_service.core.draft_source import (
    Committed,
    EnqueuedDrafts,
    EnqueuedRequest,
    RequestOpening,
    StateChunk,
    StateSpan,
)
from verify_service.core.request import RequestKey
from verify_service.core.step_result import DeviceStepResult
from verify_service.draft_link.attachment import Attachment, check_token, negotiate
from verify_service.draft_link.attachment_registry import AttachmentRegistry
from verify_service.draft_link.link_config import AUTO, LinkConfig
from verify_service.draft_link.link_state import LinkState, ProposerStatus, drafter_states
from verify_service.draft_link.records import AttachReply, AttachRequest, Command, LinkFacts, Offer
from verify_service.draft_link.refusals import Refusal, Refusals
from verify_service.draft_link.routing.draft_deadline import DraftDeadline
from verify_service.draft_link.routing.handed_trees import MALFORMED, account
from verify_service.draft_link.routing.link_pause import LinkPause
from verify_service.draft_link.routing.on_device_drafts import follow, would_follow
from verify_service.draft_link.routing.reply_handler import ReplyHandler
from verify_service.draft_link.routing.routed_request import SlotRef, drafted_for
from verify_service.draft_link.routing.router import DraftRouter
from verify_service.draft_link.routing.wait_policy import all_unresponsive, max_waits, record_waits, wait_for_replies
from verify_service.draft_link.transports.base import Transport, Wake
from verify_service.draft_link.transports.negotiation import NegotiatedTransports
from verify_service.hidden_states.device_ring import RingSlice
from verify_service.hidden_states.device_ring_pool import DeviceRingPool

_log = logging.getLogger(__name__)


class DraftLink:
    """A DraftSource fed by draft services. `on_wait` is told of each wait for trees, in seconds."""

    def __init__(
        self,
        facts: LinkFacts,
        config: LinkConfig,
        *,
        on_wait: Callable[[float], None] | None = None,
        epochs: Iterator[int] | None = None,
        clock: Callable[[], float] = time.monotonic,
        rings: DeviceRingPool | None = None,
    ) -> None:
        """`rings` are those of the model's GPU, without which no states go through its memory."""
        self.facts, self.config = facts, config
        self._on_wait, self._clock = on_wait, clock
        self._changed = threading.Condition(threading.Lock())
        self._router = DraftRouter(clock)
        self._reply_handler = ReplyHandler(self._router, facts.vocab_size, clock)
        self._registry = AttachmentRegistry(facts, config, self._router, rings, epochs)
        self.remembers = self._registry.remembers
        self._deadline = DraftDeadline(config.deadline, config.deadline_share, config.deadline_reach)
        self._refusals = Refusals(clock)
        self._pause = LinkPause()
        self._waits = self._misses = 0

    # --- The verify loop's thread ------------------------------------------------------------------------------

    def known(self, name: str) -> bool:
        """Whether a proposer of this name is configured or attached."""
        with self._changed:
            return name in self.config.configured or self._router.offering(name) is not None

    def default(self) -> str | None:
        """The operator's default proposer, None for no speculation."""
        if self.config.default != AUTO:
            return self.config.default
        with self._changed:
            return next(iter((*self.config.configured, *self._router.offered)), None)

    def begin(self, opening: RequestOpening) -> bool:
        """Hand a request to the attachment that offers its proposer, if there is one; one may come later."""
        with self._changed:
            self._router.begin(opening)
        return True

    def round_costs(self, proposer: str) -> Sequence[RoundCost]:
        """What rounds of a proposer take, in the words of the newest attachment that offers it."""
        offer = self._offer(proposer)
        return () if offer is None else offer.round_costs

    def most_levels(self, proposer: str) -> int:
        """How deep trees of a proposer are at most, in the words of the newest attachment that offers it; 0: none."""
        offer = self._offer(proposer)
        return 0 if offer is None else offer.max_depth

    def _offer(self, proposer: str) -> Offer | None:
        """What the newest attachment that offers a proposer says of it."""
        with self._changed:
            attachment = self._router.offering(proposer)
            index = None if attachment is None else attachment.index_of(proposer)
            return None if attachment is None or index is None else attachment.request.offers[index]

    def wanted_boundaries(self) -> tuple[int, ...]:
        """Boundaries whose states any attachment wants, ascending."""
        with self._changed:
            return tuple(sorted(self._router.wanted_boundaries()))

    def reserve_ring(self, wanted: Sequence[StateSpan], captured: Sequence[int]) -> list[tuple[RingSlice, ...]]:
        """Where a step puts states on the device for those drafters that take them from there."""
        with self._changed:
            return self._router.route(wanted, captured, self.facts.hidden_size)

    def send_states(self, chunks: Sequence[StateChunk]) -> None:
        """Tell whoever wants states of those that a step computed of tokens it did not decide."""
        with self._changed:
            self._router.extend(chunks)

    def accepts_commits(self) -> bool:
        """Return whether commits are sent now: not while every drafter is unresponsive, but for a heartbeat."""
        with self._changed:
            return self._pause.accepts_commits(self._clock(), unresponsive=self._all_unresponsive())

    def commit(self, commits: Sequence[Committed]) -> Collection[RequestKey]:
        """Tell each attachment what steps added, in one message, as a rule, and such as its states need."""
        with self._changed:
            parts = self._pause.begin_commit(commits, unresponsive=self._all_unresponsive())
        return {key for part in parts for key in self._commit(part)}

    def _commit(self, commits: Sequence[Committed]) -> Collection[RequestKey]:
        with self._changed:
            self._deadline.step_ends(self._clock())
            for attachment in dict.fromkeys(self._router.catching_up):
                self._take_in(attachment)
            self._router.fail_over(self._clock())
            behind = self._router.commit(commits)
            transports = [each.transport for each in self._router.live if each.transport]
        for transport in transports:
            transport.yield_gil()
        return behind

    def collect(self, wanted: Sequence[RequestKey]) -> list[TokenTree | None]:
        """The newest fitting tree of each request; waits to the deadline for those that may still come."""
        if self._pause.active:
            return [None] * len(wanted)
        with self._changed:
            begun = now = self._clock()
            refs, misses, malformed = account([self._router.current_slot(key) for key in wanted], now)
            _unused = [self._end(attachment, MALFORMED) for attachment in malformed]
            self._pick_up(refs)
            seconds = partial(self._deadline.seconds_for, haste=self._router.haste)
            longest = max_waits(refs, seconds, now)
            awaited = [ref for ref in refs if ref and ref.attachment.epoch in longest and ref.slot.awaited]
            if waited := awaited:
                until = now + max(longest[ref.attachment.epoch] for ref in awaited)
                while awaited and (left := until - now) > 0:
                    self._wait(awaited, left)
                    now = self._clock()
                    awaited = [ref for ref in awaited if ref.slot.awaited]
                self._count_wait(waited, now - begun)
                misses += len(awaited)
                for ref in awaited:
                    ref.slot.stats.misses += 1
            self._misses += misses
            record_waits(refs, set(longest), now, now - begun)
            trees = [ref.slot.put_in_flight() if ref else None for ref in refs]
            self._deadline.step_begins(now, plain=not any(trees))
        return trees

    def expects(self, keys: Sequence[RequestKey]) -> bool:
        """Whether any of these requests has a drafter that would be waited for."""
        with self._changed:
            return bool(self._drafted(keys))

    def enqueue_draft(self, rows: Sequence[EnqueuedRequest], outcome: DeviceStepResult) -> EnqueuedDrafts:
        """Have proposers draft behind a step under way, those of other processes where a step may wait for them."""
        with self._changed:
            refs = self._drafted(row.key for row in rows)
            waits = max_waits(refs, self._deadline.seconds_behind, now := self._clock())
            return follow(rows, refs, outcome, waits, now)

    def allow_device_trees(self, allowed: bool) -> None:
        """Whether proposers of this process may hand trees over whose nodes only the device knows."""
        with self._changed:
            for attachment in self._router.live:
                attachment.unread = allowed and attachment.follow is not None

    def observe_wait(self, keys: Sequence[RequestKey], seconds: float) -> None:
        """A step, launched with these requests' trees before the host knew them, has waited so long for them since."""
        with self._changed:
            if refs := [ref for key in keys if (ref := self._router.current_slot(key))]:
                self._count_wait(refs, seconds)
                self._deadline.step_begins(self._clock(), plain=False)

    def drafts_on_device(self) -> bool:
        """Whether a proposer drafts behind steps under way."""
        with self._changed:
            return any(each.drafts_behind and each.live for each in self._router.attachments.values())

    def drafts_behind(self, keys: Sequence[RequestKey]) -> bool:
        """Whether the drafters of all these requests would draft behind the next step, as far as is known."""
        with self._changed:
            refs = self._drafted(keys)
            waits = max_waits(refs, self._deadline.seconds_behind, now := self._clock())
            return len(refs) == len(keys) and all(would_follow(ref, waits, now) for ref in refs)

    def paused(self) -> bool:
        """Whether every attached drafter is unresponsive, so that commits are dropped."""
        with self._changed:
            return self._all_unresponsive()

    def end(self, key: RequestKey, reason: FinishReason, verified: Sequence[VerifiedTree] = ()) -> None:
        """Close the request's slot, if it has one."""
        with self._changed:
            self._router.end(key, reason, verified)
            if not self._router.running:
                self._deadline.step_lost()

    # --- The RPC thread ----------------------------------------------------------------------------------------

    def attach(self, request: AttachRequest, *, loopback: bool) -> AttachReply:
        """Register a draft service; raises as DraftLinkService.Attach is documented to fail."""
        check_token(request, expected=self.config.attach_token, loopback=loopback)
        with self._refusals.attempt(request):
            version, transports = negotiate(request, self.facts, self.config.transports)
            with self._changed:
                attachment = self._registry.enter(request)
            try:
                negotiated = self._registry.negotiate(request, transports)
            except SlipstreamError as error:
                self.drop(attachment, error)
                raise
            with self._changed:
                self._registry.equip(attachment, negotiated)
            return negotiated.attach_response(version, attachment, self.config.deadline)

    def attach_here(
        self, request: AttachRequest, connect: Callable[[Attachment, AttachReply], Transport]
    ) -> Attachment:
        """Register proposers of this process and begin their exchange, by the transport that `connect` makes.

        Raises SlipstreamError as Attach does.
        """
        version, transports = negotiate(request, self.facts, (IN_PROCESS,))
        with self._changed:
            attachment = self._registry.enter(request)
        transport = connect(
            attachment, NegotiatedTransports(transports).attach_response(version, attachment, self.config.deadline)
        )
        with self._changed:
            attachment.transport = transport
            attachment.circuit_breaker.on_message(self._clock())
            self._router.rebalance()
        _log.info("epoch %d exchanges by %s", attachment.epoch, transport.name)
        return attachment

    def start(self, epoch: int, wake: Wake, transport: str = "", reason: str = "") -> Attachment:
        """Begin the exchange of an attachment and bring it up to date with the requests that run.

        `transport` is the drafter's choice of those agreed on, empty for the best; `reason` says why not a better one.
        NotFoundError for an unknown epoch, FailedPreconditionError if its exchange has begun before or the transport
        was not agreed on or does not work; then the attachment still waits for its exchange.
        """
        with self._changed:
            attachment = self._registry.open(epoch, wake, transport, reason)
            attachment.circuit_breaker.on_message(self._clock())
            self._router.rebalance()
        return attachment

    def take(self, attachment: Attachment) -> tuple[Command, ...]:
        """The next records to send in one message; empty if there are none. Raises why the attachment has ended."""
        with self._changed:
            if attachment.ended is not None:
                raise attachment.ended
            return attachment.outbox.take()

    def tend(self, attachment: Attachment) -> None:
        """Take in and send what waits where no step does. Raises why the attachment has ended."""
        with self._changed:
            self._take_in(attachment)
            if attachment.ended is not None:
                raise attachment.ended
            attachment.send(0)

    def receive(self, attachment: Attachment, replies: Sequence[Reply], size: int) -> None:
        """Take in a message of `size` bytes. InvalidArgumentError for a malformed record; the caller must `drop` then.

        Afterwards nothing of the attachment is used any more.
        """
        with self._changed:
            if attachment.ended is None:
                self._apply(attachment, replies, size)
                self._changed.notify_all()

    def drop(self, attachment: Attachment, reason: SlipstreamError) -> None:
        """End an attachment; its requests go on plainly or with another one that offers their proposer. Idempotent."""
        with self._changed:
            _unused = self._end(attachment, reason)  # held until the lock is free: to let go of rings takes long

    def expire(self, epoch: int) -> None:
        """Drop an attachment whose exchange has not begun."""
        with self._changed:
            attachment = self._router.attachments.get(epoch)
            if attachment is not None and attachment.transport is None:
                _unused = self._end(attachment, UnavailableError("the exchange was not opened in time"))

    def refuse_attachments(self) -> None:
        """Take no more draft services: the service drains."""
        with self._changed:
            self._registry.refuse(UnavailableError("the verify service drains"))

    def close(self) -> None:
        """Drop all draft services and take no more: the service stops."""
        self.refuse_attachments()
        with self._changed:
            for attachment in list(self._router.attachments.values()):
                self._end(attachment, UnavailableError("the verify service stops"))

    def state(self) -> LinkState:
        """Counters of the moment."""
        with self._changed:
            drafters = drafter_states(live := self._router.live, self._router.catching_up, self._deadline)
            return LinkState(
                len(live), self._waits, self._misses, self._reply_handler.stale, self._registry.malformed,
                self._router.gaps, self._deadline.seconds, drafters,
                len(self._refusals.known(each.request for each in live)),
            )  # fmt: skip

    def proposers(self) -> list[ProposerStatus]:
        """Configured names first, then those that are attached only."""
        with self._changed:
            configured = self.config.configured
            names = dict.fromkeys((*configured, *self._router.offered))
            return [ProposerStatus(name, name in configured, self._router.offering(name)) for name in names]

    def refusals(self) -> list[Refusal]:
        """Proposers of draft services that do not draft, and why."""
        with self._changed:
            return self._refusals.known([attachment.request for attachment in self._router.live])

    # --- Under the lock ----------------------------------------------------------------------------------------

    def _all_unresponsive(self) -> bool:
        now = self._clock()
        for each in self._router.attachments.values():
            if each.live and each.circuit_breaker.is_unresponsive(now):
                return all_unresponsive(self._router.live, self._router.catching_up, now)
        return False

    def _drafted(self, keys: Iterable[RequestKey]) -> list[SlotRef]:
        """Where these requests' trees come from, of those whose drafter is asked for them; nowhere during a pause."""
        return [] if self._pause.active else drafted_for(self._router.current_slots(keys), self._clock())

    def _wait(self, awaited: Sequence[SlotRef], seconds: float) -> None:
        """Let the lock go until a tree may have come, or to the time limit."""
        if wait_for_replies(self._changed, awaited, seconds):
            self._pick_up(awaited)

    def _count_wait(self, refs: Sequence[SlotRef], seconds: float) -> None:
        """A step has waited for the trees of these."""
        self._waits += 1
        for stats in {id(ref.slot.stats): ref.slot.stats for ref in refs}.values():
            stats.waits += 1
        if self._on_wait is not None:
            self._on_wait(seconds)

    def _pick_up(self, refs: Sequence[SlotRef | None]) -> None:
        for attachment in {ref.attachment.epoch: ref.attachment for ref in refs if ref}.values():
            self._take_in(attachment)

    def _take_in(self, attachment: Attachment) -> None:
        """Apply what has come through the transport; a drafter that sent what it must not loses its attachment."""
        if attachment.transport is None or attachment.ended is not None:
            return
        try:
            for replies, size in attachment.transport.receive():
                self._apply(attachment, replies, size)
        except SlipstreamError as error:
            self._end(attachment, error)

    def _apply(self, attachment: Attachment, replies: Sequence[Reply], size: int) -> None:
        self._reply_handler.apply(attachment, replies, size)
        attachment.circuit_breaker.on_message(self._clock())

    def _end(self, attachment: Attachment, reason: SlipstreamError) -> NegotiatedTransports | None:
        """Returns what it has not used, whose memory is let go without the lock, as that of its transport is."""
        negotiated = self._registry.end(attachment, reason)
        self._changed.notify_all()
        return negotiated
