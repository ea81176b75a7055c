"""A gRPC server with what every service of the project has: health, reflection, keepalive, limits, drain."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from slipstream.rpc.channel import (
    ERROR_FIELD_KEY,
    KEEPALIVE_OPTIONS,
    LIMIT_OPTIONS,
    RETRY_AFTER_KEY,
    SHORTEST_PING_MS,
)
from slipstream.rpc.descriptors import connection_limit
from slipstream.rpc.errors import InternalError, SlipstreamError, UnavailableError, codes_of
from slipstream.rpc.unix_socket import UnixSocket

_log = logging.getLogger(__name__)

_SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *KEEPALIVE_OPTIONS,
    *LIMIT_OPTIONS,
    ("grpc.http2.min_ping_interval_without_data_ms", SHORTEST_PING_MS),
    ("grpc.so_reuseport", 0),
    # A connection that says nothing, or has had no call for long, is closed; clients connect anew by themselves.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 300_000),
)

MOST_CONNECTIONS = 4096
"""Of one server by default; each takes some 50 KB of memory beside its descriptor."""


class GrpcServer:
    """An asyncio gRPC server. Health starts as NOT_SERVING; once drained it never serves again.

    `services` are full names ("slipstream.v1.VerifyService"), reported by health and reflection beside the whole
    server (""); `register` adds the servicers. Beyond `max_connections` a new connection is closed as it comes; None
    allows as many as there are descriptors for, `MOST_CONNECTIONS` at most. `credentials` are those of host and port;
    with `unix_socket` it listens there instead, and on `beside` in any case, both in plain text.
    """

    __slots__ = ("_beside", "_credentials", "_draining", "_health", "_host", "_max_connections", "_port", "_register",
                 "_server", "_services", "_serving", "_unix_socket")  # fmt: skip

    def __init__(
        self,
        *,
        host: str,
        port: int,
        services: Sequence[str],
        register: Callable[[grpc.aio.Server], None],
        max_connections: int | None = None,
        credentials: grpc.ServerCredentials | None = None,
        unix_socket: UnixSocket | None = None,
        beside: UnixSocket | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._credentials = credentials
        self._unix_socket = unix_socket
        self._beside = beside
        self._max_connections = max_connections or connection_limit(1.0, MOST_CONNECTIONS)
        self._services = tuple(services)
        self._register = register
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None
        self._serving = False
        self._draining = False

    @property
    def draining(self) -> bool:
        """Whether a drain has begun."""
        return self._draining

    async def start(self) -> int:
        """Bind and accept calls; returns the bound port, 0 if there is none.

        UnavailableError if an address cannot be bound.
        """
        server = grpc.aio.server(
            options=(*_SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", self._max_connections))
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        self._register(server)
        reflection.enable_server_reflection((*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        bound = self._bind(server)
        self._server = server
        await self._report(serving=False)
        await server.start()
        return bound

    def _bind(self, server: grpc.aio.Server) -> int:
        for unix in (self._unix_socket, self._beside):
            if unix is not None:
                with unix.created():
                    _listen(server, unix.address, None)
        if self._unix_socket is not None:
            return 0
        address = f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"
        return _listen(server, address, self._credentials)

    async def set_serving(self, serving: bool) -> None:
        """Report SERVING or NOT_SERVING for all services. Without effect once a drain has begun."""
        if not self._draining and serving != self._serving:
            self._serving = serving
            await self._report(serving=serving)

    async def begin_drain(self) -> None:
        """Report NOT_SERVING from now on; calls go on as before."""
        if not self._draining:
            self._draining = True
            await self._health.enter_graceful_shutdown()

    async def drain(self, grace: float) -> None:
        """Refuse new calls, let running ones finish for `grace` seconds, then cancel them and stop."""
        await self.begin_drain()
        if self._server is not None:
            await self._server.stop(grace)

    async def wait(self) -> None:
        """Return when the server has stopped."""
        if self._server is not None:
            await self._server.wait_for_termination()

    async def _report(self, *, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *self._services):
            await self._health.set(name, status)


def _listen(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    """Bind; returns the port, 1 for a Unix socket. UnavailableError if that cannot be."""
    try:
        bound = (
            server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
        )
    except RuntimeError as error:
        raise UnavailableError(f"cannot listen on {address}: {error}") from error
    if bound == 0:
        raise UnavailableError(f"cannot listen on {address}")
    return bound


async def abort(
    context: grpc.aio.ServicerContext[Any, Any], error: BaseException, metadata: Sequence[tuple[str, str]] = ()
) -> NoReturn:
    """End the call with the status of `error`.

    Trailing metadata carries `metadata`, the error's field (`slipstream-error-field`) and when to retry
    (`slipstream-retry-after-seconds`).
    What is not a domain error is logged with its traceback and reported without details. Cancellation of the
    handler itself is raised again.
    """
    if isinstance(error, asyncio.CancelledError | grpc.aio.AbortError):
        raise error
    if not isinstance(error, SlipstreamError):
        _log.error("unexpected error in a call", exc_info=error)
        error = InternalError("internal error")
    field = error.field.encode("ascii", "backslashreplace").decode("ascii")
    printable = "".join(char if char.isprintable() else "?" for char in field)
    trailing = [*metadata, *([(ERROR_FIELD_KEY, printable)] if printable else [])]
    if error.retry_after is not None:
        trailing.append((RETRY_AFTER_KEY, f"{error.retry_after:.3f}"))
    await context.abort(codes_of(error).status, error.message, tuple(trailing))
    raise AssertionError("abort returned")
