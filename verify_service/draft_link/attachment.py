"""Draft services that are attached: the terms they attach under, and what is known of each."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slipstream.rpc.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
    SlipstreamError,
    UnauthenticatedError,
)
from slipstream_kernels.draft_protocol.proposer_host import DevicePassResult, EnqueuedRound, EnqueueRequest
from slipstream_kernels.draft_protocol.records import RoundCost
from slipstream_kernels.token_tree import MAX_ROWS
from verify_service.draft_link.circuit_breaker import CircuitBreaker
from verify_service.draft_link.rate_limiter import ReplyRateLimiter
from verify_service.draft_link.records import AttachRequest, LinkFacts, Offer
from verify_service.draft_link.send_queue import SendQueue
from verify_service.draft_link.slots.draft_stats import DraftStats
from verify_service.draft_link.slots.slot import Slot, SlotTable
from verify_service.hidden_states.device_ring import DeviceRing

if TYPE_CHECKING:
    from verify_service.draft_link.device_queue import DeviceQueue
    from verify_service.draft_link.transports.base import Transport

MIN_VERSION = 1
MAX_VERSION = 1
MAX_ATTACHMENTS = 16
MAX_OFFERS = 32
MAX_NAME = 256
MAX_COSTS, MAX_COST_REQUESTS, MAX_COST_SECONDS = 64, 65_536, 60.0
"""What a drafter may say of its rounds: how many, and of each the requests and the seconds."""
OPEN_SECONDS = 10.0
"""How long an attachment may take to open its Exchange."""


@dataclass(slots=True, eq=False)
class Attachment:
    """One attached draft service. The link's lock guards everything that changes."""

    epoch: int
    request: AttachRequest
    slots: SlotTable
    outbox: SendQueue
    rate_limiter: ReplyRateLimiter
    transport: Transport | None = None
    """Known once the exchange begins."""
    transport_reason: str = ""
    """Why it is not the best one, in the drafter's words."""
    ring: DeviceRing | None = None
    """Through which it takes states from the device; None where they are sent to it."""
    follow: Callable[[Sequence[EnqueueRequest], DevicePassResult, float], EnqueuedRound] | None = None
    """Has its proposers draft behind a step under way, as `ProposerHost.follow`; None where they cannot."""
    queue: DeviceQueue | None = None
    """Through which its proposers, in another process, draft behind a step under way; None where they cannot."""
    overlap: str = ""
    """How drafting and verification overlap, and why not better, for operators."""
    unread: bool = False
    """Whether trees may be handed over whose nodes only the device knows."""
    circuit_breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    share: float = field(init=False)
    """Part of the requests for its proposers that it takes, 0 to 1; see `verify_service.draft_link.traffic_weight`."""
    state_room: int = 0
    """Bytes of hidden states that may yet be sent after this step."""
    ended: SlipstreamError | None = None
    """Why it is over; None while it lives."""
    stats: tuple[DraftStats, ...] = field(init=False)
    """One for each offer, in order."""
    stale: int = 0
    """Records dropped for their stamp, late trees among them."""
    told_of_late: bool = False
    """Whether the log says that all its trees come too late."""

    boundaries: frozenset[int] = field(init=False)
    """Those whose states any of its proposers wants."""
    _indices: dict[str, int] = field(init=False)
    """Of the offers, by name."""
    _following: frozenset[int] = field(init=False)
    """Ids of the statistics of those offers that draft behind a step under way."""

    def __post_init__(self) -> None:
        self._indices = {offer.name: index for index, offer in reversed(list(enumerate(self.request.offers)))}
        self.boundaries = frozenset(each for offer in self.request.offers for each in offer.feature_boundaries)
        self.stats = tuple(DraftStats() for _ in self.request.offers)
        offered = zip(self.request.offers, self.stats, strict=True)
        self._following = frozenset(id(stats) for offer, stats in offered if offer.follows)
        self.share = 1.0 if self.request.share is None else self.request.share

    @property
    def drafts_behind(self) -> bool:
        """Whether any of its proposers may draft behind a step under way."""
        return self.follow is not None or self.queue is not None

    def may_follow(self, slot: Slot) -> bool:
        """Whether the proposer of a slot's request does."""
        if self.queue is None:
            return self.follow is not None
        return id(slot.stats) in self._following

    @property
    def live(self) -> bool:
        """Whether records can be exchanged now."""
        return self.transport is not None and self.ended is None

    def index_of(self, proposer: str) -> int | None:
        """Index of the offer of that name."""
        return self._indices.get(proposer)

    def place_of(self, proposer: str) -> tuple[str, str]:
        """Where the proposer of that name computes: the device, and the UUID of the GPU where that is known."""
        index = self.index_of(proposer)
        own = "" if index is None else self.request.offers[index].device
        whole = self.request.device
        return own or whole, self.request.gpu_uuid if own in ("", whole) else ""

    def send(self, records: int) -> None:
        """So many records have entered the outbox: send them, and expect their answers."""
        self.rate_limiter.refill(records)
        if self.transport is not None:
            self.transport.send(self.outbox)


def new_attachment(epoch: int, request: AttachRequest, num_slots: int, outbox_limit: int) -> Attachment:
    """One whose exchange has not begun."""
    return Attachment(epoch, request, SlotTable(epoch, num_slots), SendQueue(outbox_limit), ReplyRateLimiter(num_slots))


def unguessable_epochs() -> Iterator[int]:
    """Epochs that no earlier life of this service had, and that nobody can open an exchange with but whom they name."""
    epoch = secrets.randbits(48)
    while True:
        epoch += secrets.randbits(32) + 1
        yield epoch


def named(request: AttachRequest) -> str:
    """What the log calls a draft service."""
    return f"{request.name[:80]!r} (process {request.process_id}, {request.address[:80]!r})"


def offered_by(request: AttachRequest) -> list[str]:
    """Names of the proposers, in order."""
    return [offer.name for offer in request.offers]


def check_token(request: AttachRequest, *, expected: str, loopback: bool) -> None:
    """Raise UnauthenticatedError unless the token fits; peers on loopback need none, but a wrong one is refused."""
    if loopback and not request.token:
        return
    if not expected:
        raise UnauthenticatedError("peers beyond loopback may attach only where an attach token is configured")
    if not hmac.compare_digest(request.token.encode(), expected.encode()):
        raise UnauthenticatedError("wrong attach token")


def negotiate(request: AttachRequest, facts: LinkFacts, transports: Sequence[str]) -> tuple[int, tuple[str, ...]]:
    """The protocol version to use, and those of `transports` that both speak, in that order; at least one.

    InvalidArgumentError or FailedPreconditionError if nothing fits.

    An empty fingerprint and a vocabulary of 0 come from drafters that work with any, such as n-gram matchers.
    """
    if not 1 <= request.min_version <= request.max_version:
        raise InvalidArgumentError(
            f"min_version must be from 1 to max_version, got {request.min_version} and {request.max_version}",
            field="min_version",
        )
    if request.min_version > MAX_VERSION or request.max_version < MIN_VERSION:
        raise FailedPreconditionError(
            f"protocol versions {request.min_version} to {request.max_version} offered, "
            f"{MIN_VERSION} to {MAX_VERSION} spoken here",
            field="min_version",
        )
    _check_unfit(request)
    _check_offers(request.offers, facts)
    if request.share is not None:
        check_share(request.share)
    if request.tokenizer_fingerprint and request.tokenizer_fingerprint != facts.tokenizer_fingerprint:
        raise FailedPreconditionError(
            f"tokenizer_fingerprint {request.tokenizer_fingerprint!r} differs from the target's, "
            f"{facts.tokenizer_fingerprint!r}",
            field="tokenizer_fingerprint",
        )
    if request.vocab_size and request.vocab_size != facts.vocab_size:
        raise FailedPreconditionError(
            f"vocab_size {request.vocab_size} differs from the target's, {facts.vocab_size}", field="vocab_size"
        )
    common = tuple(name for name in transports if name in request.transports)
    if not common:
        raise FailedPreconditionError(
            f"transports {list(request.transports)} offered, {list(transports)} spoken here", field="transports"
        )
    return min(request.max_version, MAX_VERSION), common


def check_share(share: float) -> None:
    """InvalidArgumentError unless it is a part of a whole."""
    if not 0.0 <= share <= 1.0:
        raise InvalidArgumentError(f"share must be from 0 to 1, got {share}", field="share")


def check_union(request: AttachRequest, others: Iterable[Attachment], always: Sequence[int], facts: LinkFacts) -> None:
    """ResourceExhaustedError where what it wants is too much beside the boundaries that others want."""
    asked = _boundaries(request)
    wanted = asked.union(always, *(_boundaries(other.request) for other in others))
    if asked and len(wanted) > facts.most_boundaries:
        raise ResourceExhaustedError(
            f"boundaries {sorted(wanted)} would be wanted by all draft services together, at most "
            f"{facts.most_boundaries} are published at once"
        )


def _boundaries(request: AttachRequest) -> set[int]:
    return {boundary for offer in request.offers for boundary in offer.feature_boundaries}


def _check_unfit(request: AttachRequest) -> None:
    if len(request.unfit) > MAX_OFFERS:
        raise InvalidArgumentError(f"unfit must be at most {MAX_OFFERS}, got {len(request.unfit)}", field="unfit")
    for index, each in enumerate(request.unfit):
        if not each.name or len(each.name) > MAX_NAME:
            field = f"unfit[{index}].name"
            raise InvalidArgumentError(f"{field} must be 1 to {MAX_NAME} characters", field=field)
    if request.unfit and not request.offers:
        raise FailedPreconditionError("no proposer of the draft service fits the model", field="unfit")


def _check_offers(offers: tuple[Offer, ...], facts: LinkFacts) -> None:
    if not 1 <= len(offers) <= MAX_OFFERS:
        raise InvalidArgumentError(f"proposers must be 1 to {MAX_OFFERS}, got {len(offers)}", field="proposers")
    names = [offer.name for offer in offers]
    for i, offer in enumerate(offers):
        where = f"proposers[{i}]"
        if not offer.name or len(offer.name) > MAX_NAME or not offer.name.isprintable():
            raise InvalidArgumentError(
                f"{where}.name must be 1 to {MAX_NAME} printable characters", field=f"{where}.name"
            )
        if offer.name in names[:i]:
            raise InvalidArgumentError(f"{where}.name {offer.name!r} is offered twice", field=f"{where}.name")
        if offer.max_nodes < 2 or offer.max_depth < 1:
            raise InvalidArgumentError(
                f"{where} must offer max_nodes of at least 2 and max_depth of at least 1 (at most {MAX_ROWS} and "
                f"{MAX_ROWS - 1} are used), got {offer.max_nodes} and {offer.max_depth}",
                field=f"{where}.max_nodes" if offer.max_nodes < 2 else f"{where}.max_depth",
            )
        _check_boundaries(offer.feature_boundaries, facts, where)
        _check_costs(offer.round_costs, where)


def _check_costs(costs: tuple[RoundCost, ...], where: str) -> None:
    if len(costs) > MAX_COSTS:
        raise InvalidArgumentError(
            f"{where}.round_costs must be at most {MAX_COSTS}, got {len(costs)}", field=f"{where}.round_costs"
        )
    for index, (requests, levels, seconds) in enumerate(costs):
        field = f"{where}.round_costs[{index}]"
        if not 1 <= requests <= MAX_COST_REQUESTS:
            raise InvalidArgumentError(
                f"{field}.requests must be 1 to {MAX_COST_REQUESTS}, got {requests}", field=f"{field}.requests"
            )
        if not 1 <= levels < MAX_ROWS:
            raise InvalidArgumentError(
                f"{field}.levels must be 1 to {MAX_ROWS - 1}, got {levels}", field=f"{field}.levels"
            )
        if not 0.0 < seconds <= MAX_COST_SECONDS:  # which no NaN is
            raise InvalidArgumentError(
                f"{field}.seconds must be above 0 and at most {MAX_COST_SECONDS:.0f}, got {seconds}",
                field=f"{field}.seconds",
            )


def _check_boundaries(wanted: tuple[int, ...], facts: LinkFacts, where: str) -> None:
    field = f"{where}.feature_boundaries"
    if len(set(wanted)) != len(wanted):
        raise InvalidArgumentError(f"{where} names boundaries twice: {list(wanted)}", field=field)
    if not set(wanted) <= set(facts.feature_boundaries):
        known = facts.feature_boundaries
        published = f"{known[0]} to {known[-1]} are" if known else "none are"
        raise FailedPreconditionError(
            f"{where} wants feature_boundaries {list(wanted)}, {published} published here", field=field
        )
    if len(wanted) > facts.most_boundaries:
        raise FailedPreconditionError(
            f"{where} wants {len(wanted)} feature_boundaries, at most {facts.most_boundaries} are published at once",
            field=field,
        )
