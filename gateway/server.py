"""Both APIs in one process on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Final

import uvicorn
import uvloop
from starlette.types import ASGIApp

from gateway.access.access_log import AccessLogged
from gateway.config import GatewaySettings
from gateway.grpc_api import SERVICE_NAME, GatewayServicer
from gateway.http.api import OpenAiApi, create_app
from gateway.http.connections import ConnectionLimits, ConnectionTable
from gateway.http.cors import with_cors
from gateway.http.direct import DirectEndpoints
from gateway.http.listener import BACKLOG, doors, leave, listen
from gateway.http.protocol import BoundedHttpProtocol
from gateway.http.request_guard import RequestGuard
from gateway.http.tls_handshake import behind_tls
from gateway.known_hosts import KnownHosts
from gateway.service import READY, Gateway
from slipstream.rpc.descriptors import connection_limit, raise_limit
from slipstream.rpc.errors import SlipstreamError
from slipstream.rpc.lifecycle import run_until_terminated
from slipstream.rpc.logs import set_up_logging
from slipstream.rpc.server import GrpcServer
from slipstream.settings import load

_log = logging.getLogger("gateway")

_HEALTH_SECONDS: Final = 0.1
"""Between looks at the verify services' state for the health service."""

_LAST_SECONDS: Final = 0.5
"""What calls get to end when the drain is over."""

_ACCEPTORS: Final = 8
"""Handles of the listening socket. The event loop accepts one connection a turn at each, and a turn that has much to
read takes milliseconds, in which connections come faster."""

_HTTP_SHARE: Final = 0.75
"""Of the descriptors; gRPC has the rest, so that neither API can starve the other one or the health checks."""

_MOST_HTTP_CONNECTIONS: Final = 16384
_MOST_SPARE_CONNECTIONS: Final = 256
_MOST_GRPC_CONNECTIONS: Final = 4096


def main(argv: list[str] | None = None) -> None:
    """Run until told to stop; exits with status 1 if the gateway cannot start."""
    settings = load(GatewaySettings, "gateway", argv)
    set_up_logging("gateway", settings.log_level, settings.log_format)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    raise_limit()
    try:
        uvloop.run(serve(settings))
    except (SlipstreamError, OSError) as error:
        _log.error("cannot start: %s", error)
        sys.exit(1)


async def serve(settings: GatewaySettings) -> None:
    """Serve both APIs until SIGTERM or SIGINT, then drain; a second signal quits at once."""
    gateway = await Gateway.load(settings)
    servicer = GatewayServicer(gateway)
    grpc_server = GrpcServer(
        host=settings.host,
        port=settings.grpc_port,
        services=[SERVICE_NAME],
        register=servicer.register,
        max_connections=settings.max_grpc_connections or connection_limit(1 - _HTTP_SHARE, _MOST_GRPC_CONNECTIONS),
        credentials=settings.server_credentials(),
        unix_socket=settings.grpc_socket,
        beside=settings.health_socket,
    )
    listener = listen(settings)
    grpc_port = await grpc_server.start()
    connections = _connections(gateway)
    http_server = _HttpServer(_http_config(_application(gateway), connections, settings), connections)
    http = asyncio.create_task(http_server.serve(sockets=acceptors(listener)))

    async def drain() -> None:
        health.cancel()
        await grpc_server.begin_drain()
        await gateway.drain(settings.drain_seconds)
        leave(settings)
        http_server.should_exit = True
        await asyncio.gather(grpc_server.drain(_LAST_SECONDS), http)
        await gateway.close()
        _log.info("stopped")

    await gateway.start()
    _leave_out_of_collections()
    where = doors(settings, listener, grpc_port)
    _log.info("listening http=%s grpc=%s", *where)
    health = asyncio.create_task(_report_health(gateway, grpc_server, where))
    await run_until_terminated(drain)


def _leave_out_of_collections() -> None:
    """Have the garbage collector pass over what lives as long as the process: to look through it holds all streams."""
    gc.collect()
    gc.freeze()
    gc.collect()  # full collections are as rare as the last one found objects: there are few from now on


class _HttpServer(uvicorn.Server):
    """Leaves signals to the process's own handlers, and looks after the connections."""

    def __init__(self, config: uvicorn.Config, connections: ConnectionTable) -> None:
        super().__init__(config)
        self._connections = connections

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """See uvicorn, which calls this ten times a second."""
        self._connections.sweep()
        return await super().on_tick(counter)


def _application(gateway: Gateway) -> ASGIApp:
    """The OpenAI API, with requests refused that their headers speak against, and each of them logged.

    Pages of allowed origins can read those refusals too, so CORS is outermost.
    """
    app = create_app(gateway)
    settings = gateway.settings
    guarded = RequestGuard(
        DirectEndpoints(app, OpenAiApi(gateway)),
        json_paths=[path for path, methods in app.openapi()["paths"].items() if "post" in methods],
        known_hosts=None
        if gateway.keys.required
        else KnownHosts(settings.host, settings.allowed_hosts, settings.allowed_origins),
        count=functools.partial(_count, gateway),
    )
    logged = AccessLogged(guarded, gateway.access_log)
    return with_cors(logged, settings.allowed_origins) if settings.allowed_origins else logged


def _connections(gateway: Gateway) -> ConnectionTable:
    settings = gateway.settings
    most = settings.max_connections or connection_limit(_HTTP_SHARE, _MOST_HTTP_CONNECTIONS)
    spare = min(_MOST_SPARE_CONNECTIONS, most // 8)
    limits = ConnectionLimits(
        connections=settings.max_connections or most - 2 * spare,
        spare=max(1, spare),
        head_seconds=settings.head_seconds,
        body_seconds=settings.body_seconds,
        reader_seconds=settings.reader_seconds,
    )
    table = ConnectionTable(limits, functools.partial(_count, gateway))
    gateway.metrics.http_connections.set_function(lambda: len(table))
    return table


def _count(gateway: Gateway, status: int) -> None:
    gateway.metrics.answered("http", str(status))


def _http_config(app: ASGIApp, connections: ConnectionTable, settings: GatewaySettings) -> uvicorn.Config:
    plain: Callable[..., BoundedHttpProtocol] = functools.partial(BoundedHttpProtocol, table=connections)
    # TLS is begun by a protocol of our own: uvicorn would have a handshake take any time, and any number of them.
    context = None if settings.unix_socket else settings.ssl_context()
    http = plain if context is None else behind_tls(context, connections, plain)
    return uvicorn.Config(
        app,
        http=http,  # type: ignore[arg-type]  # called as a class is
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=settings.keep_alive_seconds,
        backlog=BACKLOG,
        timeout_graceful_shutdown=1,
    )


def acceptors(listener: socket.socket) -> list[socket.socket]:
    """The listening socket, several times over, for that many connections a turn of the event loop."""
    return [listener, *(listener.dup() for _ in range(_ACCEPTORS - 1))]


async def _report_health(gateway: Gateway, server: GrpcServer, where: tuple[str, str]) -> None:
    """Keep the health service and the log in step with readiness, which /ready tells as well."""
    told = ""
    while True:
        status = gateway.status
        await server.set_serving(status == READY)
        if status != told and status == READY:
            _log.info("ready http=%s grpc=%s", *where)
        elif status != told:
            _log.info("not ready: %s", status)
        told = status
        await asyncio.sleep(_HEALTH_SECONDS)
