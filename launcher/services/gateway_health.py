"""What the gateway's HTTP side says of its health, by whichever door."""

from __future__ import annotations

import json
import socket
import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any

from launcher.services.commands import split_address
from launcher.services.tls_files import TlsFiles
from slipstream.rpc.unix_socket import SCHEME, is_unix

HTTPS = "https://"


class GatewayStatusError(Exception):
    """It answered, but not that it is well: the HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"error {status}")
        self.status = status


def read_health(address: str, tls: TlsFiles | None, timeout: float) -> dict[str, Any]:
    """The document at /health of host:port, https://host:port or unix:PATH.

    Over https its certificate must be signed by an authority of the system's or of `tls`. GatewayStatusError if the
    answer is an error; OSError or ValueError if there is none.
    """
    connection = _connection(address, tls, timeout)
    try:
        connection.request("GET", "/health", headers={"host": "localhost"} if is_unix(address) else {})
        answer = connection.getresponse()
        if answer.status != 200:
            raise GatewayStatusError(answer.status)
        document = json.load(answer)
    except HTTPException as error:
        raise ValueError(f"{address} speaks no HTTP: {error!r}") from error
    finally:
        connection.close()
    if not isinstance(document, dict):
        raise ValueError(f"{address} is no gateway")
    return document


class _UnixConnection(HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _connection(address: str, tls: TlsFiles | None, timeout: float) -> HTTPConnection:
    if is_unix(address):
        return _UnixConnection(address.removeprefix(SCHEME), timeout)
    host, port = split_address(address.removeprefix(HTTPS).removeprefix("http://").rstrip("/"))
    if not address.startswith(HTTPS):
        return HTTPConnection(host, port, timeout=timeout)
    context = ssl.create_default_context()
    if tls is not None:
        context.load_verify_locations(tls.ca)
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
    return HTTPSConnection(host, port, timeout=timeout, context=context)
