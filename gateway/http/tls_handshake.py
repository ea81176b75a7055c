"""The TLS handshake of an HTTP connection, bounded in number and time as what follows it."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Final

from gateway.http.connections import ConnectionTable, Phase
from gateway.http.protocol import BoundedHttpProtocol

_log = logging.getLogger(__name__)

_UNREAD_BYTES: Final = 64 * 1024
"""What a client may leave unread before the answer waits, as on connections in plain text."""

_FOREVER: Final = 1e6
"""Seconds: the table of connections says when one that closes is given up."""


class TlsHandshake(asyncio.Protocol):
    """One connection of the table until its handshake is done; then its transport is `http`'s.

    Clients may send the first request with the end of the handshake: what comes before `http` takes over is kept.
    """

    def __init__(self, context: ssl.SSLContext, table: ConnectionTable, http: BoundedHttpProtocol) -> None:
        self._context = context
        self._table = table
        self._http = http
        self._transport: asyncio.Transport | None = None
        self._upgrade: Coroutine[Any, Any, asyncio.Transport | None] | None = None
        self._received: list[bytes] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Take the connection and begin."""
        self._transport = transport
        self._table.admit(self)
        self._upgrade = asyncio.get_running_loop().start_tls(
            transport,
            self,
            self._context,
            server_side=True,
            ssl_handshake_timeout=2 * self._table.limits.head_seconds,  # the table has ended it by then
            ssl_shutdown_timeout=_FOREVER,
        )
        # A task would begin in a later turn of the loop, and the client's first bytes may come in this one. So it runs
        # from here to where it waits for the end of the handshake, its only wait.
        handshake: asyncio.Future[None] = self._upgrade.send(None)
        handshake.add_done_callback(self._shaken)

    def data_received(self, data: bytes) -> None:
        """The first bytes of a request, decrypted."""
        self._received.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._table.leave(self)

    def expire(self, phase: Phase) -> None:
        """See Connection."""
        self.evict()

    def evict(self) -> None:
        """See Connection."""
        assert self._transport is not None
        self._transport.abort()

    def _shaken(self, _handshake: asyncio.Future[None]) -> None:
        """The handshake is over, in whatever way."""
        assert self._upgrade is not None
        assert self._transport is not None
        self._table.leave(self)
        try:
            self._upgrade.send(None)
        except StopIteration as done:
            encrypted: asyncio.Transport = done.value
            if not encrypted.is_closing():
                self._hand_over(encrypted, self._transport)
        except OSError as error:  # of what the peer sent, or because it left
            _log.debug("a TLS handshake failed: %s", error)

    def _hand_over(self, encrypted: asyncio.Transport, transport: asyncio.Transport) -> None:
        encrypted.set_write_buffer_limits(high=_UNREAD_BYTES)
        encrypted.set_protocol(self._http)
        self._http.encrypted(encrypted, transport)
        for data in self._received:
            if not encrypted.is_closing():
                self._http.data_received(data)


def behind_tls(
    context: ssl.SSLContext, table: ConnectionTable, http: Callable[..., BoundedHttpProtocol]
) -> Callable[..., TlsHandshake]:
    """What makes the protocol of a new connection, as uvicorn calls it."""

    def make(**arguments: Any) -> TlsHandshake:
        return TlsHandshake(context, table, http(**arguments))

    return make
