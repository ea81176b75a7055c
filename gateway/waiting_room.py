"""Choices that no verify service works on at the moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gateway.ticket import Ticket
from slipstream.rpc.errors import SlipstreamError


@dataclass(slots=True)
class _Place:
    reason: SlipstreamError
    clock: asyncio.TimerHandle | None = None


class WaitingRoom:
    """Tickets in the order in which they are to go on, some of them against the clock.

    When a ticket's clock runs out it is out of the room, and `on_time_up` is called with it and the reason it was in.
    """

    __slots__ = ("_on_time_up", "_places")

    def __init__(self, on_time_up: Callable[[Ticket, SlipstreamError], None]) -> None:
        self._on_time_up = on_time_up
        self._places: dict[Ticket, _Place] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[tuple[Ticket, SlipstreamError]]:
        """Tickets with the reason why they wait; those that have left meanwhile are passed over."""
        for ticket, place in list(self._places.items()):
            if self._places.get(ticket) is place:
                yield ticket, place.reason

    def add(self, ticket: Ticket, reason: SlipstreamError) -> None:
        """Let a ticket in, without a clock."""
        self._places[ticket] = _Place(reason)

    def discard(self, ticket: Ticket) -> bool:
        """Let a ticket go and stop its clock; False if it is not there."""
        place = self._places.pop(ticket, None)
        if place is not None and place.clock is not None:
            place.clock.cancel()
        return place is not None

    def start_clock(self, ticket: Ticket, seconds: float) -> None:
        """Start a ticket's clock unless it runs."""
        place = self._places[ticket]
        if place.clock is None:
            place.clock = asyncio.get_running_loop().call_later(seconds, self._ring, ticket)

    def stop_clock(self, ticket: Ticket) -> None:
        """Let a ticket wait as long as it takes."""
        place = self._places[ticket]
        if place.clock is not None:
            place.clock.cancel()
            place.clock = None

    def _ring(self, ticket: Ticket) -> None:
        place = self._places.pop(ticket)
        self._on_time_up(ticket, place.reason)
