"""The host names that this server is known by, so that no other name can lead a browser here.

A web page may send requests to any server that its visitor's browser reaches, this one on loopback included. The
browser says where the page is from (`Origin`) and what the server was called (`Host`). A page whose own name has been
made to resolve to this server (DNS rebinding) is of one origin with it, and told apart by that name alone.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

ANY_HOST: Final = "*"
"""Stands for all names, which turns the checks off."""

_LOCAL_NAME: Final = "localhost"
_NO_ORIGIN: Final = "null"
"""What browsers write for pages without an origin of their own, such as files."""


class KnownHosts:
    """Names of the server: its addresses, localhost, what it listens on, this machine's name, and those given.

    Names of `allowed` match without regard to case and port; `*` matches all. `origins` are those of pages that are
    trusted wherever they come from, as browsers write them; `*` matches all.
    """

    __slots__ = ("_any", "_names", "_origins")

    def __init__(self, bound: str, allowed: Sequence[str], origins: Sequence[str] = ()) -> None:
        names = {_LOCAL_NAME, bound, *allowed} | (set() if _is_loopback(bound) else {socket.gethostname()})
        self._names = frozenset(name.lower().rstrip(".") for name in names)
        self._any = ANY_HOST in allowed
        self._origins = frozenset(origins)

    def knows(self, host: str) -> bool:
        """Whether a `Host` header, with or without port, names this server. An address always does: it is no name."""
        name = _name(host)
        return self._any or (name is not None and (name in self._names or _address(name) is not None))

    def trusts(self, origin: str, host: str) -> bool:
        """Whether a page of `origin` may send requests here: it is of this server, of this machine, or named."""
        if self._any or origin in self._origins or ANY_HOST in self._origins:
            return True
        parts = origin.partition("://")
        name = _name(parts[2]) if parts[0] in ("http", "https") else None
        return name is not None and (name in self._names or name == _name(host) or _is_loopback(name))


def checked_origin(text: str) -> str:
    """An origin as browsers write it. ValueError unless it is scheme://host[:port], `null` or `*`."""
    if text in (ANY_HOST, _NO_ORIGIN):
        return text
    scheme, separator, host = text.lower().removesuffix("/").partition("://")
    if not (scheme and separator and _name(host)):
        raise ValueError(f"{text!r} is no origin: write scheme://host or scheme://host:port")
    return f"{scheme}://{host}"


def _name(host: str) -> str | None:
    """The name or address of host[:port], in lower case; None if there is none."""
    try:
        parts = urlsplit(f"//{host}")
        parts.port  # noqa: B018  # raises where the port is no number
        plain = parts.hostname is not None and parts.netloc == host and "@" not in host
        return parts.hostname.rstrip(".") if plain and parts.hostname is not None else None
    except ValueError:
        return None


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _is_loopback(name: str) -> bool:
    address = _address(name)
    return name == _LOCAL_NAME or (address is not None and address.is_loopback)
