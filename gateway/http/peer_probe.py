"""Whether a client that has ended its sending side still reads.

A client that has shut down its sending side and one that has gone away look alike: both have sent a FIN. They differ in
how they take what is sent to them: the kernel of the one that is gone answers with a reset. So the server writes bytes
without a meaning: an interim response (RFC 9110, section 15.2: a client has to expect one at any time) before the
answer has begun, and the filler that the application allows between two parts of a streamed one.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

FILLER: Final = "slipstream.filler"
"""ASGI extension of a request: bytes that mean nothing between two messages of its response's body."""

WRITE_SECONDS: Final = (0.1, 1.0, 10.0, 60.0)
"""When to write after the client has ended: few times, as clients bound the number of interim responses."""

_LOOK_SECONDS: Final = (0.02, 0.1, 0.5)
"""When to look for a reset after each write."""

_INTERIM: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class PeerProbe:
    """Of one connection. One whose client is gone is aborted; where nothing may be written, nothing is found out."""

    __slots__ = ("_connection", "_timers")

    def __init__(self, connection: HttpToolsProtocol) -> None:
        self._connection = connection
        self._timers: list[asyncio.TimerHandle] = []

    def start(self) -> None:
        """The client sends no more."""
        later = self._connection.loop.call_later
        for begin in WRITE_SECONDS:
            self._timers.append(later(begin, self._write))
            self._timers += [later(begin + seconds, self._look) for seconds in _LOOK_SECONDS]

    def stop(self) -> None:
        """The connection is closed."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _look(self) -> None:
        """Abort the connection if it was reset: nothing else reports that of one that is no longer read."""
        transport = self._connection.transport
        end: socket.socket = transport.get_extra_info("socket")
        if not transport.is_closing() and end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            transport.abort()

    def _write(self) -> None:
        connection, cycle = self._connection, self._connection.cycle
        if connection.transport.is_closing() or connection.pipeline or connection.flow.write_paused:
            return
        filler = cast("Mapping[str, bytes]", cycle.scope.get("extensions", {})).get(FILLER, b"")
        if not cycle.response_started and cycle.scope["http_version"] == "1.1":
            connection.transport.write(_INTERIM)
        elif cycle.response_started and not cycle.response_complete and cycle.chunked_encoding and filler:
            connection.transport.write(b"%x\r\n%b\r\n" % (len(filler), filler))
