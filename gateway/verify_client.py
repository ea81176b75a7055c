"""The verify services behind the gateway: which one takes a request, and what happens when one goes away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from gateway.replica import Replica, Ticket
from gateway.request import VerifyInfo
from slipstream.rpc.errors import SlipstreamError, UnavailableError

_log = logging.getLogger(__name__)

MAX_FRUITLESS_LOSSES: Final = 3
"""Sessions in a row that a request may lose without a token; after one more it is taken for the cause and fails."""


class VerifyClient:
    """All replicas of one model. Requests go to the least loaded one that is ready.

    When a replica goes away its requests go on at another one of the same model from the tokens already received, as
    tokens are a function of model, request and position alone. Where there is none they wait `resume_seconds` for one
    and then fail as unavailable. New requests go to one model: the first one ready, until no replica serves it.
    """

    __slots__ = ("_parked", "_replicas", "_resume_seconds", "_served")

    def __init__(self, addresses: Sequence[str], *, timeout: float, resume_seconds: float) -> None:
        self._resume_seconds = resume_seconds
        self._parked: dict[Ticket, asyncio.TimerHandle] = {}
        self._served: VerifyInfo | None = None
        self._replicas = [
            Replica(address, timeout=timeout, on_ready=self._unpark, on_lost=self._recover) for address in addresses
        ]

    async def start(self) -> None:
        """Connect to all replicas in the background."""
        for replica in self._replicas:
            replica.start()

    async def close(self) -> None:
        """End all sessions."""
        await asyncio.gather(*(replica.close() for replica in self._replicas))
        for ticket in list(self._parked):
            self.cancel(ticket)

    @property
    def ready(self) -> bool:
        """Whether a request could be taken now."""
        return bool(self._usable())

    @property
    def info(self) -> VerifyInfo:
        """Facts about the model served. UnavailableError before the first replica has answered and while none is."""
        return self._choose().info or self._unreachable()

    async def fetch_info(self) -> VerifyInfo:
        """Facts of this moment, asked of a replica."""
        return await self._choose().fetch_info()

    def submit(self, tickets: Sequence[Ticket]) -> None:
        """Send the choices of one request to one replica, where they share the prompt's pages."""
        replica = self._choose()
        for ticket in tickets:
            replica.submit(ticket)

    def cancel(self, ticket: Ticket) -> None:
        """Stop a choice that nobody reads any more. Finished ones are left alone."""
        if timer := self._parked.pop(ticket, None):
            timer.cancel()
        elif ticket.replica is not None:
            ticket.replica.cancel(ticket)

    def _usable(self) -> list[Replica]:
        ready = [replica for replica in self._replicas if replica.ready]
        if ready and (self._served is None or not self._ready_with(self._served.fingerprint)):
            self._served = ready[0].info
        return [] if self._served is None else self._ready_with(self._served.fingerprint)

    def _ready_with(self, fingerprint: str) -> list[Replica]:
        return [
            replica
            for replica in self._replicas
            if replica.ready and replica.info is not None and replica.info.fingerprint == fingerprint
        ]

    def _choose(self) -> Replica:
        usable = self._usable()
        if not usable:
            self._unreachable()
        return min(usable, key=lambda replica: replica.load)

    def _unreachable(self) -> VerifyInfo:
        raise UnavailableError("no verify service is ready; retry later")

    def _unpark(self) -> None:
        """A replica has become ready: what waited for one goes on."""
        usable = self._usable()
        for replica in self._replicas:
            if replica.ready and replica not in usable:
                _log.warning("verify service %s serves another model and is not used", replica.address)
        for ticket in list(self._parked):
            if self._ready_with(ticket.fingerprint):
                self._parked.pop(ticket).cancel()
                self._resume(ticket)

    def _resume(self, ticket: Ticket) -> bool:
        """Go on where the ticket's own model is served; False if that is nowhere now."""
        same = self._ready_with(ticket.fingerprint)
        if same:
            min(same, key=lambda replica: replica.load).submit(ticket)
        return bool(same)

    def _recover(self, tickets: list[Ticket], reason: SlipstreamError) -> None:
        """A replica has gone: its tickets go elsewhere, wait, or fail."""
        for ticket in tickets:
            if ticket.fruitless > MAX_FRUITLESS_LOSSES:
                ticket.fail(UnavailableError(f"{reason.message}, {ticket.fruitless} times without a token"))
            elif self._resume(ticket):
                continue
            elif self._resume_seconds > 0:
                loop = asyncio.get_running_loop()
                self._parked[ticket] = loop.call_later(self._resume_seconds, self._give_up, ticket, reason)
            else:
                ticket.fail(reason)

    def _give_up(self, ticket: Ticket, reason: SlipstreamError) -> None:
        del self._parked[ticket]
        ticket.fail(reason)
