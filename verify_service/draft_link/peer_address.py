"""Where a draft service that dialled this one can be dialled itself."""

from __future__ import annotations

import ipaddress
from urllib.parse import unquote

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def peer_host(peer: str) -> IPAddress | None:
    """The address in a gRPC peer name ("ipv4:10.0.0.1:4711", "ipv6:%5B::1%5D:4711"); None for others, as "unix:..."."""
    kind, _, rest = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return None
    host = _parsed(rest.rpartition(":")[0])
    mapped = host.ipv4_mapped if isinstance(host, ipaddress.IPv6Address) else None
    return mapped or host


def seen_address(advertised: str, peer: str) -> str:
    """`advertised` (host:port) as it can be dialled from here.

    A wildcard says nothing, and the loopback of another host is not this one's: then the peer's own address is taken.
    """
    host, _, port = advertised.rpartition(":")
    here, own = peer_host(peer), _parsed(host)
    if here is None or own is None or not (own.is_unspecified or (own.is_loopback and not here.is_loopback)):
        return advertised
    return f"[{here}]:{port}" if here.version == 6 else f"{here}:{port}"


def _parsed(host: str) -> IPAddress | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
