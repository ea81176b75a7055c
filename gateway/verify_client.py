"""The verify services behind the gateway: which one takes a request, and what happens when one goes away."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from gateway.metrics import Metrics
from gateway.replica import Replica
from gateway.request import VerifyInfo
from gateway.ticket import Ticket
from gateway.waiting_room import WaitingRoom
from slipstream.rpc.errors import (
    InternalError,
    ResourceExhaustedError,
    SlipstreamError,
    UnavailableError,
)

_log = logging.getLogger(__name__)

MAX_FRUITLESS_LOSSES: Final = 3
"""Sessions in a row that a request may lose without a token before it is taken for the cause and fails."""

SUSPECT_LOSSES: Final = MAX_FRUITLESS_LOSSES - 1
"""Sessions so lost from which on a request goes on only while no other suspect is on trial."""

FULL_RETRY_SECONDS: Final = 0.25
"""Between attempts to go on at services that are full."""


class VerifyClient:
    """All replicas of one model. Requests go to the least loaded one that is ready.

    When a replica goes away its requests go on at another one of the same model from the tokens already received, as
    tokens are a function of model, request and position alone. Where there is none they wait `resume_seconds` for one
    and then fail as unavailable. New requests go to one model: the first one ready, until no replica serves it; while
    it is away no longer than `resume_seconds`, they wait for it too.

    Of several requests under which sessions were lost again and again only the cause is to fail: those suspected go
    on one at a time, each on trial until it yields a token.
    """

    __slots__ = ("_away_since", "_full", "_metrics", "_replicas", "_resume_seconds", "_served", "_trial", "_waiting")

    def __init__(
        self, addresses: Sequence[str], *, timeout: float, resume_seconds: float, metrics: Metrics | None = None
    ) -> None:
        self._resume_seconds = resume_seconds
        self._metrics = metrics or Metrics()
        self._waiting = WaitingRoom(self._give_up)  # for a service of their model, or for the end of a trial
        self._full = WaitingRoom(self._retry)  # for a service that had no room for them
        self._trial: Ticket | None = None
        self._served: VerifyInfo | None = None
        self._away_since = -math.inf  # when a session was lost last
        self._replicas = [Replica(address, self, timeout=timeout) for address in addresses]

    async def start(self) -> None:
        """Connect to all replicas in the background."""
        for replica in self._replicas:
            replica.start()

    async def close(self) -> None:
        """End all sessions."""
        await asyncio.gather(*(replica.close() for replica in self._replicas))
        for room in (self._waiting, self._full):
            for ticket, _ in room:
                self.cancel(ticket)

    @property
    def ready(self) -> bool:
        """Whether a request would be sent on at once."""
        return bool(self._usable())

    @property
    def info(self) -> VerifyInfo:
        """Facts about the model served. UnavailableError while requests are not taken, not even to wait."""
        usable = self._usable()
        if self._served is None or not (usable or self._awaited()):
            raise _unreachable()
        return (usable[0].info if usable else None) or self._served

    async def fetch_info(self) -> VerifyInfo:
        """Facts of this moment, asked of a replica."""
        usable = self._usable()
        if not usable:
            raise _unreachable()
        return await _least_loaded(usable).fetch_info()

    def submit(self, tickets: Sequence[Ticket]) -> None:
        """Send the choices of one request to one replica, where they share the prompt's pages.

        UnavailableError or ResourceExhaustedError where they can be neither sent nor let wait.
        """
        usable = self._usable()
        if usable:
            replica = _least_loaded(usable)
            for ticket in tickets:
                replica.submit(ticket)
        elif self._served is not None and self._awaited():
            self._let_wait(tickets, self._served)
        else:
            raise _unreachable()

    def cancel(self, ticket: Ticket) -> None:
        """Stop a choice that nobody reads any more. Finished ones are left alone."""
        if not (self._waiting.discard(ticket) or self._full.discard(ticket)) and ticket.replica is not None:
            ticket.replica.cancel(ticket)
        self._settle(ticket)

    def on_ready(self, replica: Replica) -> None:
        """See Owner: what waited for the replica goes on."""
        if replica not in self._usable():
            _log.warning("verify service %s serves another model and is not used", replica.address)
        self._dispatch()

    def on_lost(self, tickets: list[Ticket]) -> None:
        """See Owner: the tickets go on elsewhere, wait, or fail."""
        self._away_since = time.monotonic()
        for ticket in tickets:
            self._pause(ticket, UnavailableError("the verify service went away"), blamed=True)
        self._dispatch()

    def on_return(self, ticket: Ticket, error: SlipstreamError) -> bool:
        """See Owner. What has been taken once is not refused later for a reason that passes."""
        taken = bool(ticket.losses or ticket.received)
        if isinstance(error, UnavailableError) and taken:
            self._pause(ticket, error, blamed=False)
        elif isinstance(error, UnavailableError) and self._ready(ticket.fits):
            self._waiting.add(ticket, error)
        elif isinstance(error, ResourceExhaustedError) and taken and self._may_retry(ticket):
            self._full.add(ticket, error)
            self._full.start_clock(ticket, FULL_RETRY_SECONDS)
        elif error.field == "speculation.proposer" and taken and ticket.proposer:
            ticket.forget_proposer()
            self._waiting.add(ticket, error)
        else:
            self._settle(ticket)
            return False
        if self._trial is ticket:
            self._trial = None
        self._dispatch()
        return True

    def on_progress(self, ticket: Ticket) -> None:
        """See Owner."""
        if ticket.losses:
            self._metrics.resumed(time.monotonic() - ticket.paused_at)
        self._settle(ticket)

    def _usable(self) -> list[Replica]:
        """Where new requests may go."""
        found = self._same_model()
        if not found and (ready := self._ready(lambda info: True)):
            self._served = ready[0].info
            found = self._same_model()
        return found

    def _same_model(self) -> list[Replica]:
        served = self._served
        return [] if served is None else self._ready(lambda info: info.fingerprint == served.fingerprint)

    def _ready(self, fits: Callable[[VerifyInfo], bool]) -> list[Replica]:
        return [
            replica for replica in self._replicas if replica.ready and replica.info is not None and fits(replica.info)
        ]

    def _awaited(self) -> bool:
        """Whether what was served has gone just now and may be back soon, and not because it drains."""
        draining = any(replica.info is not None for replica in self._replicas)
        return not draining and time.monotonic() < self._away_since + self._resume_seconds

    def _let_wait(self, tickets: Sequence[Ticket], served: VerifyInfo) -> None:
        if len(self._waiting) + len(tickets) > served.max_requests:
            raise ResourceExhaustedError(
                f"{len(self._waiting)} choices wait for a verify service, the limit is {served.max_requests}"
            )
        for ticket in tickets:
            ticket.origin, ticket.paused_at = served, time.monotonic()
            self._metrics.paused.inc()
            self._waiting.add(ticket, UnavailableError("the verify service went away"))
        self._dispatch()

    def _pause(self, ticket: Ticket, reason: SlipstreamError, *, blamed: bool) -> None:
        """A ticket has lost its service."""
        if self._trial is ticket:
            self._trial = None
        if not ticket.paused_at:
            self._metrics.paused.inc()
        ticket.lose(blamed=blamed)
        self._waiting.add(ticket, reason)

    def _dispatch(self) -> None:
        """Send on what waits where its model is served; the rest waits against the clock, or fails."""
        for ticket, reason in self._waiting:
            suspect = ticket.fruitless >= SUSPECT_LOSSES
            if ticket.fruitless >= MAX_FRUITLESS_LOSSES:
                message = f"{reason.message} {ticket.fruitless} times before a token of it came"
                self._fail(ticket, InternalError(message))
            elif not (replicas := self._ready(ticket.fits)):
                self._hold(ticket, reason)
            elif suspect and self._trial is not None:
                self._waiting.stop_clock(ticket)
            else:
                self._waiting.discard(ticket)
                self._trial = ticket if suspect else self._trial
                _least_loaded(replicas).submit(ticket)

    def _hold(self, ticket: Ticket, reason: SlipstreamError) -> None:
        """Let a ticket wait for a service of its model, if one can still come."""
        others = [replica.info for replica in self._replicas if replica.info is not None]
        if len(others) == len(self._replicas) and not any(map(ticket.fits, others)):
            self._fail(
                ticket, UnavailableError(f"{reason.message}, and came back with another model or build: start again")
            )
        elif self._resume_seconds > 0:
            self._waiting.start_clock(ticket, self._resume_seconds)
        else:
            self._fail(ticket, reason)

    def _give_up(self, ticket: Ticket, reason: SlipstreamError) -> None:
        waited = f"{reason.message}, and was not back within {self._resume_seconds:g} s"
        self._fail(ticket, UnavailableError(waited))

    def _may_retry(self, ticket: Ticket) -> bool:
        """Whether a ticket for which there is no room may ask again."""
        ticket.full_since = ticket.full_since or time.monotonic()
        return time.monotonic() < ticket.full_since + self._resume_seconds

    def _retry(self, ticket: Ticket, reason: SlipstreamError) -> None:
        self._waiting.add(ticket, reason)
        self._dispatch()

    def _fail(self, ticket: Ticket, error: SlipstreamError) -> None:
        self._waiting.discard(ticket)
        self._settle(ticket)
        ticket.fail(error)

    def _settle(self, ticket: Ticket) -> None:
        """A ticket that may have waited does so no longer."""
        if ticket.paused_at:
            self._metrics.paused.dec()
            ticket.progress()
        if self._trial is ticket:
            self._trial = None
            self._dispatch()


def _least_loaded(replicas: Iterable[Replica]) -> Replica:
    return min(replicas, key=lambda replica: replica.load)


def _unreachable() -> UnavailableError:
    return UnavailableError("no verify service is ready; retry later")
