"""How clients on this host reach a gateway's two APIs: by TCP or a Unix socket, in plain text or over TLS."""

from __future__ import annotations

import os
import shlex
from typing import NamedTuple

from launcher.services.commands import Layout, reachable
from slipstream.rpc.unix_socket import SCHEME, is_unix


class HttpAccess(NamedTuple):
    """`base` URL of the HTTP API, and options of `curl` for it and of `slipstream chat` for the gRPC API."""

    base: str
    curl: str
    chat: str


def speaks_tls(layout: Layout) -> bool:
    """Whether the gateway's ports do."""
    named = any(argument.startswith("--ssl-certfile") for argument in layout.gateway_arguments)
    return named or "SLIPSTREAM_GATEWAY_SSL_CERTFILE" in {*os.environ, *layout.environment}


def http_access(layout: Layout) -> HttpAccess:
    """See HttpAccess. Options begin with a blank unless empty; CA_FILE stands for the authority's file."""
    secure = speaks_tls(layout)
    chat = " --tls-ca CA_FILE" if secure and not is_unix(layout.grpc_address) else ""
    if is_unix(layout.http_address):
        socket = shlex.quote(layout.http_address.removeprefix(SCHEME))
        return HttpAccess("http://localhost", f" --unix-socket {socket}", chat)
    http = reachable(layout.http_address)
    return (
        HttpAccess(f"https://{http}", " --cacert CA_FILE", chat) if secure else HttpAccess(f"http://{http}", "", chat)
    )
