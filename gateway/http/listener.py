"""The socket of the HTTP API: a port, or a Unix socket."""

from __future__ import annotations

import contextlib
import socket
from typing import Final

from gateway.config import GatewaySettings
from slipstream.rpc.errors import UnavailableError

BACKLOG: Final = 4096
"""Connections that may wait to be accepted; Linux's own default for the most."""


def listen(settings: GatewaySettings) -> socket.socket:
    """A socket that takes connections from here on: they wait until uvicorn accepts them.

    UnavailableError if that cannot be.
    """
    if settings.unix_socket is not None:
        return settings.unix_socket.listen(BACKLOG)
    host, port = settings.host, settings.http_port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise UnavailableError(f"cannot listen on {host}:{port}: {error}") from error
    return listener


def leave(settings: GatewaySettings) -> None:
    """Remove the file of a Unix socket while it is still ours; gRPC removes its own."""
    if settings.unix_socket is not None:
        with contextlib.suppress(OSError):
            settings.unix_socket.path.unlink()


def doors(settings: GatewaySettings, listener: socket.socket, grpc_port: int) -> tuple[str, str]:
    """Where HTTP and gRPC are served, for the log: ports, or addresses of Unix sockets."""
    http, grpc = settings.unix_socket, settings.grpc_socket
    return http.address if http else str(listener.getsockname()[1]), grpc.address if grpc else str(grpc_port)
