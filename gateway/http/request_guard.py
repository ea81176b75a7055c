"""ASGI middleware that refuses requests by their headers, before the application sees them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.access.access_log import access_of
from gateway.http.errors import error_response
from gateway.known_hosts import KnownHosts
from slipstream.rpc.errors import (
    InvalidArgumentError,
    PermissionDeniedError,
    SlipstreamError,
    UnsupportedMediaTypeError,
)

_JSON: Final = b"application/json"
_JSON_SUFFIX: Final = b"+json"
_SHOWN: Final = 80
"""Characters of a header that an error repeats."""


class RequestGuard:
    """Lets through what is unambiguous, declared as JSON where the endpoint reads JSON, and meant for this server.

    `json_paths` are those that read it. `known_hosts` is None where keys are required: without one a web page can do
    nothing. `count` is called with the HTTP status of each refusal.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        json_paths: Collection[str],
        known_hosts: KnownHosts | None,
        count: Callable[[int], None],
    ) -> None:
        self._app = app
        self._json_paths = frozenset(json_paths)
        self._known_hosts = known_hosts
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http":
            try:
                self._check(scope)
            except SlipstreamError as error:
                response = error_response(error)
                access_of(scope).fails(error)
                self._count(response.status_code)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value)
        hosts = [value.decode("latin-1") for value in headers.get(b"host", [])]
        if len(hosts) > 1 or not (hosts or scope["http_version"] == "1.0"):
            raise InvalidArgumentError("an HTTP/1.1 request needs one Host header", field="host")
        if self._known_hosts is not None:
            origins = [value.decode("latin-1") for value in headers.get(b"origin", [])]
            _check_source(self._known_hosts, hosts[0] if hosts else "", origins)
        if scope["method"] == "POST" and scope["path"] in self._json_paths:
            _check_media_type(headers.get(b"content-type", []))
            _check_coding(headers.get(b"content-encoding", []))


def _check_source(known: KnownHosts, host: str, origins: list[str]) -> None:
    if host and not known.knows(host):
        raise PermissionDeniedError(
            f"this server is not known as {host!r}; --allowed-hosts of the gateway names it so", field="host"
        )
    for origin in origins:
        if not known.trusts(origin, host):
            raise PermissionDeniedError(f"pages of {origin!r} may not send requests to this server", field="origin")


def _check_media_type(values: list[bytes]) -> None:
    kind = values[0].partition(b";")[0].strip().lower() if len(values) == 1 else b""
    if kind != _JSON and not (kind.startswith(b"application/") and kind.endswith(_JSON_SUFFIX)):
        raise UnsupportedMediaTypeError("the body needs `Content-Type: application/json`", field="content-type")


def _check_coding(values: list[bytes]) -> None:
    if any(value.strip().lower() != b"identity" for value in values):
        named = b", ".join(values).decode("latin-1")[:_SHOWN]
        raise UnsupportedMediaTypeError(
            f"the body may not be compressed, its Content-Encoding is {named!r}", field="content-encoding"
        )
