"""uvicorn's HTTP/1.1 protocol with bounds: on heads, on time, on pipelining, and on the number of connections."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.core import request_id
from gateway.http.connections import ConnectionTable, Phase
from gateway.http.errors import plain_error
from gateway.http.peer_probe import PeerProbe

MAX_HEAD_BYTES: Final = 64 * 1024
"""Of a request's head, and of all that a chunked body has beside its data: chunk extensions and trailers."""

MAX_HEADER_LINES: Final = 100
"""Header lines and trailers of one request."""

MAX_TARGET_BYTES: Final = 8 * 1024
"""Of a request's target: path and query."""

MAX_PIPELINED: Final = 16
"""Requests that may wait on one connection behind the one being answered."""

CHUNK_OVERHEAD: Final = 8
"""Bytes of chunk headers allowed for each byte of a chunked body: chunks of one byte have five."""

HEALTH_TARGETS: Final = frozenset({b"/health", b"/ready"})
"""Answered on connections beyond the limit too: a server that is full is not to be taken for one that hangs."""

_BODY_HEADERS: Final = (b"content-length", b"transfer-encoding")
_TOO_MANY: Final = "too many connections are open; retry later"
_LINE_BYTES: Final = len(": \r\n")
_DISCARDED_BYTES: Final = 16 * 1024 * 1024
"""Read of a refused client, so that it sees the answer and not a reset connection."""


class _RefusedError(Exception):
    """The request cannot be taken: the HTTP status and message of its answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection, which `table` bounds in number and time.

    Every answer has the id of its request (see core/request_id.py), as has the state of the request's scope. A client
    that has shut down its sending side gets its answers. Trailers are dropped: as uvicorn would have it they
    were headers of a request that has been looked at already.
    """

    def __init__(self, *, table: ConnectionTable, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._table = table
        self._probe = PeerProbe(self)
        self._beneath: asyncio.Transport | None = None  # what carries the transport, if that is one of TLS
        self._excess = False  # of the limit of connections
        self._fresh = True  # bytes of a request are awaited, or have come, but its head has not begun
        self._in_head = False
        self._in_body = False
        self._message_ended = False  # in this read
        self._ended = False  # the client sends no more
        self._refusing = False  # what the client sends is dropped
        self._lines = 0
        self._head_bytes = 0  # of the target and the complete lines, trailers included
        self._unfinished_bytes = 0  # of the reads that the head has not ended in
        self._framing_bytes = 0  # of a body, less its data and what may come with it
        self._discarded_bytes = 0
        self._unread = 0  # bytes of an answer that were left when they were looked at last

    # asyncio

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Take the connection."""
        super().connection_made(transport)
        self._excess = not self._table.admit(self)

    def encrypted(self, transport: asyncio.Transport, beneath: asyncio.Transport) -> None:
        """Take a connection of TLS, carried by `beneath`, in place of `connection_made`."""
        self._beneath = beneath
        self.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._unset_keepalive_if_required()
        self._probe.stop()
        self._table.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse; what breaks a bound is answered, and the connection closed."""
        self._unset_keepalive_if_required()
        if self._refusing:
            self._discard(len(data))
            return
        self._fresh |= not (self._in_head or self._in_body)
        self._message_ended = self._in_body
        self._framing_bytes += len(data)
        try:
            self.parser.feed_data(data)
            if not (self._in_body or self._message_ended):
                self._unfinished_bytes += len(data)
            self._check_sizes()
        except httptools.HttpParserUpgrade:
            # No upgrade is offered. What follows cannot be told from the other protocol, and is not read.
            self.cycle.keep_alive, self._refusing = False, True
        except (httptools.HttpParserError, _RefusedError) as error:
            refusal = error if isinstance(error, _RefusedError) else error.__context__
            if isinstance(refusal, _RefusedError):
                self._refuse(refusal.status, str(refusal))
            else:
                self._refuse(400, "the request is not valid HTTP/1.1")
        self._settle()

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio lets it say so
        """The client sends no more; True, which keeps the connection open, while it has an answer coming.

        TLS knows no half of a connection: its client has gone.
        """
        self._ended = True
        if self._beneath is not None or self._refusing or self._in_head or self._in_body or not self._answering:
            return False
        self.cycle.keep_alive = False
        self._probe.start()
        return True

    def pause_writing(self) -> None:
        """See asyncio."""
        super().pause_writing()
        self._unread = self._unread_bytes()
        self._settle()

    def resume_writing(self) -> None:
        """See asyncio."""
        super().resume_writing()
        self._settle()

    # httptools

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._fresh, self._in_head = False, True
        self._lines = self._head_bytes = self._unfinished_bytes = 0

    def on_url(self, url: bytes) -> None:
        """A part of the target."""
        super().on_url(url)
        self._head_bytes += len(url)
        if len(self.url) > MAX_TARGET_BYTES:
            raise _RefusedError(414, f"the request's target has more than {MAX_TARGET_BYTES} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header line, or a trailer."""
        self._lines += 1
        if self._lines > MAX_HEADER_LINES:
            raise _RefusedError(431, f"the request has more than {MAX_HEADER_LINES} header lines")
        self._head_bytes += len(name) + len(value) + _LINE_BYTES
        self._check_sizes()
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """A head ends."""
        if len(self.pipeline) >= MAX_PIPELINED:
            raise _RefusedError(400, f"more than {MAX_PIPELINED} requests wait on this connection")
        if self.parser.should_upgrade() and any(name in _BODY_HEADERS for name, _ in self.headers):
            raise _RefusedError(400, "a request with a body may not ask for an upgrade")
        if self._excess and self.url not in HEALTH_TARGETS:
            raise _RefusedError(503, _TOO_MANY)
        super().on_headers_complete()
        self.cycle.keep_alive &= not self._excess
        self._identify()
        self._in_head, self._in_body = False, True
        self._framing_bytes = 0

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        self._framing_bytes -= len(body) * (1 + CHUNK_OVERHEAD)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request ends."""
        self._in_body, self._message_ended = False, True
        super().on_message_complete()

    # uvicorn

    def on_response_complete(self) -> None:
        """An answer ends."""
        super().on_response_complete()
        if (self._ended or self._refusing) and not self._answering:
            self.transport.close()
        self._settle()

    def timeout_keep_alive_handler(self) -> None:
        """See uvicorn: nothing came for too long."""
        super().timeout_keep_alive_handler()
        self._settle()

    def shutdown(self) -> None:
        """See uvicorn: the server ends."""
        super().shutdown()
        self._settle()

    # the table

    def expire(self, phase: Phase) -> None:
        """See Connection."""
        limits = self._table.limits
        if phase is Phase.BODY and not self.cycle.response_started:
            self._refuse(408, f"the request's body did not arrive within {limits.body_seconds:g} s")
        elif phase is Phase.EXCESS:
            self._refuse(503, _TOO_MANY)
        elif phase is Phase.HEAD and not self._fresh:
            self._refuse(408, f"the request's head did not arrive within {limits.head_seconds:g} s")
        elif phase in (Phase.READER, Phase.CLOSE) and 0 < self._unread_bytes() < self._unread:
            self._unread = self._unread_bytes()
            self._table.renew(self)
        elif phase in (Phase.READER, Phase.CLOSE):
            self.transport.abort()
        else:
            self.transport.close()
        self._settle()

    def evict(self) -> None:
        """See Connection."""
        if self._excess and not self._refusing:
            self._refuse(503, _TOO_MANY)
            self.transport.close()
            self._settle()
        else:
            self.transport.abort()

    # the rest

    @property
    def _answering(self) -> bool:
        """Whether an answer is under way or due."""
        cycle: RequestResponseCycle | None = self.cycle  # which uvicorn declares as if there always were one
        return cycle is not None and not (cycle.response_complete or cycle.disconnected)

    def _settle(self) -> None:
        """Tell the table what the connection waits for."""
        if self.transport.is_closing():
            phase = Phase.CLOSE
            self._close_beneath()
        elif self.flow.write_paused:
            phase = Phase.READER
        elif self._refusing and not self._answering:
            phase = Phase.LINGER
        elif self._in_body and not self.pipeline:
            phase = Phase.BODY
        elif self._answering:
            phase = Phase.ANSWER
        elif self._in_head or self._fresh:
            phase = Phase.EXCESS if self._excess else Phase.HEAD
        else:
            phase = Phase.IDLE
        self._table.enter(self, phase)

    def _identify(self) -> None:
        """Give the request whose head has ended its id. Its application has not begun yet."""
        chosen = request_id.choose(self.headers)
        self.scope["state"][request_id.STATE_KEY] = chosen
        self.cycle.default_headers = [*self.cycle.default_headers, (request_id.HEADER, chosen.encode("ascii"))]

    def _close_beneath(self) -> None:
        """Once TLS has said its farewell nobody waits for the client's."""
        if self._beneath is not None and not self.transport.get_write_buffer_size():
            self._beneath.close()

    def _unread_bytes(self) -> int:
        beneath = self._beneath.get_write_buffer_size() if self._beneath is not None else 0
        return self.transport.get_write_buffer_size() + beneath

    def _check_sizes(self) -> None:
        if max(self._head_bytes, self._unfinished_bytes) > MAX_HEAD_BYTES:
            raise _RefusedError(431, f"the request's head has more than {MAX_HEAD_BYTES} bytes")
        if self._in_body and self._framing_bytes > MAX_HEAD_BYTES:
            raise _RefusedError(431, f"a body's chunk extensions and trailers have more than {MAX_HEAD_BYTES} bytes")

    def _refuse(self, status: int, message: str) -> None:
        """Take no more requests. The answer is the error, unless earlier requests are being answered."""
        self._refusing = True
        if self._in_body and self._answering and (self.pipeline or self.cycle.response_started):
            self.transport.close()  # the application may wait for this body, and its answer has another place
        elif not self._in_body and self._answering:
            self.cycle.keep_alive = False
        else:
            if self._in_body and self._answering:
                self.cycle.waiting_for_100_continue = False
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            else:
                self._table.count(status)
            self._write_error(status, message)

    def _write_error(self, status: int, message: str) -> None:
        body = bytes(plain_error(status, message).body)
        if self._in_body:
            headers = self.cycle.default_headers
        else:
            chosen = request_id.choose(self.headers if self._in_head else ())
            headers = [*self.server_state.default_headers, (request_id.HEADER, chosen.encode("ascii"))]
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        fixed = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
        retry = "retry-after: 1\r\n" if status == 503 else ""
        self.transport.write(STATUS_LINE[status] + lines + f"{fixed}{retry}\r\n".encode("ascii") + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()

    def _discard(self, size: int) -> None:
        self._discarded_bytes += size
        if self._discarded_bytes > _DISCARDED_BYTES:
            self.transport.close()
        self._settle()
