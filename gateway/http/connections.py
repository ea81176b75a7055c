"""The open HTTP connections: how many there may be, and how long each may keep the server waiting."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

_log = logging.getLogger(__name__)

EVICTION_SECONDS: Final = 1.0
"""A connection that has waited this long for its client gives way to a new one when the limit is reached."""

_WARNING_SECONDS: Final = 10.0
"""Shortest time between two warnings that the limit is reached."""


class Phase(Enum):
    """What a connection waits for."""

    HEAD = "head"
    """The rest of a request's head, or its first byte on a new connection."""
    EXCESS = "excess"
    """The head of a request on a connection beyond the limit, which is refused unless it asks for the health."""
    IDLE = "idle"
    """Another request, after an answer. The HTTP server's own keep-alive timer bounds this phase."""
    BODY = "body"
    """The rest of a request's body."""
    ANSWER = "answer"
    """The server's own work, which has limits of its own."""
    READER = "reader"
    """A client that has left more of its answer unread than is buffered."""
    LINGER = "linger"
    """A client that has been refused and may still be writing."""
    CLOSE = "close"
    """The last bytes of an answer to leave, and the connection with them."""


_WAITING: Final = (Phase.HEAD, Phase.IDLE, Phase.BODY)
"""Phases in which a connection can give way to another one."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections there may be, and the seconds that each may spend in a phase.

    Beyond `connections` as many as `spare` may be open to learn what they want, and as many again to read a refusal.
    """

    connections: int
    spare: int
    head_seconds: float
    body_seconds: float
    reader_seconds: float
    excess_seconds: float = 2.0

    def seconds(self, phase: Phase) -> float | None:
        """Longest stay in a phase; None where there is no such limit."""
        return {
            Phase.HEAD: self.head_seconds,
            Phase.EXCESS: self.excess_seconds,
            Phase.BODY: self.body_seconds,
            Phase.READER: self.reader_seconds,
            Phase.LINGER: self.excess_seconds,
            Phase.CLOSE: self.reader_seconds,
        }.get(phase)


class Connection(Protocol):
    """One connection as the table sees it."""

    def expire(self, phase: Phase) -> None:
        """The time for `phase` is over."""
        ...

    def evict(self) -> None:
        """Close at once: a newer connection takes the place."""
        ...


class ConnectionTable:
    """All connections by the phase that each is in, those of a phase in the order in which they entered it.

    As all stay equally long at most, what is over is found from the front of each order. `count` is called with the
    HTTP status of each request that was answered before the application saw it.
    """

    __slots__ = ("_order", "_phase", "_warned", "count", "limits")

    def __init__(self, limits: ConnectionLimits, count: Callable[[int], None]) -> None:
        self.limits = limits
        self.count = count
        self._order: dict[Phase, OrderedDict[Connection, float]] = {phase: OrderedDict() for phase in Phase}
        self._phase: dict[Connection, Phase] = {}
        self._warned = -_WARNING_SECONDS

    def __len__(self) -> int:
        return len(self._phase)

    def admit(self, connection: Connection) -> bool:
        """Let a new connection in; False if it is beyond the limit, and none waits for long enough to give way."""
        excess = len(self._order[Phase.EXCESS]) + len(self._order[Phase.LINGER])
        admitted = len(self._phase) - excess < self.limits.connections or self._evict_longest()
        self.enter(connection, Phase.HEAD if admitted else Phase.EXCESS)
        return admitted

    def enter(self, connection: Connection, phase: Phase) -> None:
        """A connection begins to wait for something else; without effect if it is in this phase."""
        before = self._phase.get(connection)
        if before is not phase:
            if before is not None:
                del self._order[before][connection]
            order = self._order[phase]
            if phase in (Phase.EXCESS, Phase.LINGER) and len(order) >= self.limits.spare:
                self._evict(next(iter(order)))
            self._phase[connection] = phase
            order[connection] = time.monotonic()

    def renew(self, connection: Connection) -> None:
        """The time of a connection's phase begins again: it has moved on."""
        order = self._order[self._phase[connection]]
        order.move_to_end(connection)
        order[connection] = time.monotonic()

    def leave(self, connection: Connection) -> None:
        """A connection is closed."""
        phase = self._phase.pop(connection, None)
        if phase is not None:
            del self._order[phase][connection]

    def sweep(self) -> None:
        """Tell the connections whose time is over."""
        now = time.monotonic()
        for phase, order in self._order.items():
            seconds = self.limits.seconds(phase)
            if seconds is None:
                continue
            expired = []
            for connection, since in order.items():
                if now < since + seconds:
                    break
                expired.append(connection)
            for connection in expired:
                connection.expire(phase)

    def _evict_longest(self) -> bool:
        """Evict the connection that has kept the server waiting longest, if that is long enough."""
        now = time.monotonic()
        if now >= self._warned + _WARNING_SECONDS:
            self._warned = now
            _log.warning("%d HTTP connections are open, which is the limit", self.limits.connections)
        oldest = [next(iter(order.items())) for phase in _WAITING if (order := self._order[phase])]
        if not oldest:
            return False
        connection, since = min(oldest, key=lambda entry: entry[1])
        if now < since + EVICTION_SECONDS:
            return False
        self._evict(connection)
        return True

    def _evict(self, connection: Connection) -> None:
        self.enter(connection, Phase.CLOSE)
        connection.evict()
