"""How attachments begin and how they end."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from slipstream.rpc.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    SlipstreamError,
)
from verify_service.draft_link.attachment import (
    MAX_ATTACHMENTS,
    Attachment,
    check_union,
    named,
    new_attachment,
    offered_by,
    unguessable_epochs,
)
from verify_service.draft_link.link_config import LinkConfig
from verify_service.draft_link.records import AttachRequest, LinkFacts
from verify_service.draft_link.routing.router import DraftRouter
from verify_service.draft_link.transports.base import Wake
from verify_service.draft_link.transports.negotiation import NegotiatedTransports, TransportNegotiator
from verify_service.hidden_states.device_ring_pool import DeviceRingPool

_log = logging.getLogger(__name__)

_OF_QUEUE = ("handed", "unmade", "misses")
MOST_REMEMBERING = 256
"""Names of proposers that may draft tokens of other requests; beyond them all are taken for such."""


class AttachmentRegistry:
    """Enters attachments in the router and takes them out again. The draft link's lock guards all but `negotiate`.

    `malformed` counts those that ended for a record they must not have sent.
    """

    __slots__ = ("_closed", "_config", "_epochs", "_facts", "_negotiated", "_negotiator", "_remembering", "_router",
                 "malformed")  # fmt: skip

    def __init__(
        self,
        facts: LinkFacts,
        config: LinkConfig,
        router: DraftRouter,
        rings: DeviceRingPool | None,
        epochs: Iterator[int] | None = None,
    ) -> None:
        self._facts = facts
        self._config = config
        self._router = router
        self._negotiator = TransportNegotiator(facts, config, rings)
        self._negotiated: dict[int, NegotiatedTransports] = {}
        self._epochs = unguessable_epochs() if epochs is None else epochs
        self._closed: SlipstreamError | None = None
        self._remembering: frozenset[str] = frozenset()
        self.malformed = 0

    def remembers(self, proposer: str) -> bool:
        """Whether trees under that name may hold tokens of other requests: any that was offered might. Needs no lock.

        A name that nobody has offered makes no trees.
        """
        return proposer in self._remembering or len(self._remembering) > MOST_REMEMBERING

    def refuse(self, reason: SlipstreamError) -> None:
        """Take no more of them."""
        self._closed = reason

    def enter(self, request: AttachRequest) -> Attachment:
        """A new attachment, whose exchange has not begun."""
        if self._closed is not None:
            raise self._closed
        others = self._router.attachments
        if len(others) >= MAX_ATTACHMENTS:
            raise ResourceExhaustedError(f"{MAX_ATTACHMENTS} draft services are attached, no more are taken")
        check_union(request, others.values(), self._config.feature_boundaries, self._facts)
        attachment = new_attachment(next(self._epochs), request, self._config.num_slots, self._config.outbox_limit)
        others[attachment.epoch] = attachment
        if len(self._remembering) <= MOST_REMEMBERING:
            self._remembering |= {offer.name for offer in request.offers if not offer.own_text_only}
        _log.info("attached epoch %d: %s, proposers %s", attachment.epoch, named(request), offered_by(request))
        return attachment

    def negotiate(self, request: AttachRequest, transports: Sequence[str]) -> NegotiatedTransports:
        """What its exchange can go by, found without the lock; raises SlipstreamError where that is nothing."""
        return self._negotiator.negotiate(request, transports)

    def equip(self, attachment: Attachment, negotiated: NegotiatedTransports) -> None:
        """Keep them until its exchange begins. Raises why it has ended, if it has meanwhile."""
        if attachment.ended is not None:
            negotiated.close()
            raise attachment.ended
        self._negotiated[attachment.epoch] = negotiated
        attachment.transport_reason = negotiated.reason

    def open(self, epoch: int, wake: Wake, transport: str, reason: str) -> Attachment:
        """Have its records travel by the transport of that name; raises as DraftLink.start does."""
        attachment = self._router.attachments.get(epoch)
        if attachment is None:
            raise NotFoundError(f"no attachment has epoch {epoch}")
        if attachment.transport is not None:
            raise FailedPreconditionError(f"the exchange of epoch {epoch} is open already")
        negotiated = self._negotiated[epoch]
        attachment.transport = negotiated.open(attachment, transport, wake)
        attachment.queue, attachment.overlap = negotiated.queue, negotiated.overlap
        attachment.transport_reason = why = reason or attachment.transport_reason
        del self._negotiated[epoch]
        name, level = attachment.transport.name, logging.WARNING if why else logging.INFO
        _log.log(level, "epoch %d exchanges by %s%s", epoch, name, why and f": {why!r}")
        if attachment.overlap:
            _log.info("epoch %d %s", epoch, attachment.overlap)
        return attachment

    def end(self, attachment: Attachment, reason: SlipstreamError) -> NegotiatedTransports | None:
        """Take it out; its requests go elsewhere. Idempotent.

        Returns what it has not used, whose memory is let go without the lock, as that of its transport is.
        """
        if attachment.ended is not None:
            return None
        # Tracebacks hold what the attachment had, its memory included, until some later collection of garbage.
        reason.__cause__ = reason.__context__ = None
        attachment.ended = reason.with_traceback(None)
        self.malformed += isinstance(reason, InvalidArgumentError)
        negotiated = self._negotiated.pop(attachment.epoch, None)
        if negotiated is not None:
            negotiated.close()
        attachment.ring = None
        if attachment.queue is not None:
            attachment.queue.close()
            told = attachment.epoch, *(sum(getattr(each, name) for each in attachment.stats) for name in _OF_QUEUE)
            _log.info("epoch %d drafted behind passes: %d trees handed over, %d not made, %d too late", *told)
        self._router.forget(attachment)
        if attachment.transport is not None:
            attachment.transport.close()
        _log.info("detached epoch %d: %s: %s", attachment.epoch, named(attachment.request), reason.message)
        return negotiated
