"""What the draft link tells of itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from verify_service.core.draft_source import WaitUrgency
from verify_service.draft_link.attachment import Attachment
from verify_service.draft_link.routing.draft_deadline import DraftDeadline
from verify_service.draft_link.slots.draft_stats import DraftStats


@dataclass(frozen=True, slots=True)
class DrafterState:
    """One proposer of one live attachment: `requests` drafted for now, and a copy of its counters.

    `share` is the part of all requests that the attachment is due, `catching_up` those that it has yet to take over,
    `stale` its records that were dropped for their stamp, late trees among them, all three whatever their proposer.
    `answer` is how many seconds its trees usually take, None before that is known, `deadline` how many a step waits for
    them at most whose requests all insist on trees.
    """

    epoch: int
    name: str
    address: str
    process_id: int
    transport: str
    proposer: str
    requests: int
    share: float
    catching_up: int
    stale: int
    stats: DraftStats
    answer: float | None = None
    deadline: float = 0.0


@dataclass(frozen=True, slots=True)
class LinkState:
    """Counters from the start, the number of live attachments and each one's own counters.

    `waits` counts steps that waited, `misses` trees that were not there at the deadline, `stale` records dropped for
    their stamp, `malformed` records that cost their sender the attachment, `gaps` slots that lost their feed.
    `deadline` is the longest wait of a step at the moment, in seconds; `refused` counts proposers of draft services
    that do not draft, as they do not fit.
    """

    attachments: int
    waits: int
    misses: int
    stale: int
    malformed: int
    gaps: int
    deadline: float = 0.0
    drafters: tuple[DrafterState, ...] = ()
    refused: int = 0


def drafter_states(
    live: Sequence[Attachment], catching_up: Sequence[Attachment], deadline: DraftDeadline
) -> tuple[DrafterState, ...]:
    """One state for each proposer of each live attachment; `catching_up` has one for each request to take over."""
    return tuple(state for each in live for state in _drafter_states(each, catching_up.count(each), deadline))


def _drafter_states(attachment: Attachment, catching_up: int, deadline: DraftDeadline) -> list[DrafterState]:
    assert attachment.transport is not None
    request, taken = attachment.request, attachment.slots.taken()
    return [
        DrafterState(
            attachment.epoch,
            request.name,
            request.address,
            request.process_id,
            attachment.transport.name,
            offer.name,
            sum(slot.stats is stats for slot in taken),
            attachment.share,
            catching_up,
            attachment.stale,
            replace(stats, sources=dict(stats.sources)),
            stats.answers.usual,
            deadline.seconds_for(stats.mean_accepted, stats.answers.usual, WaitUrgency.INSISTENT),
        )
        for offer, stats in zip(request.offers, attachment.stats, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class ProposerStatus:
    """A proposer's name, and the newest attachment that offers it."""

    name: str
    configured: bool
    attachment: Attachment | None

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Boundaries whose states the attachment wants for this proposer; none where nothing is attached."""
        offers = () if self.attachment is None else self.attachment.request.offers
        return tuple(boundary for offer in offers if offer.name == self.name for boundary in offer.feature_boundaries)
