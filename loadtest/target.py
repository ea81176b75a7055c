"""Where load may go."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit


class TargetError(ValueError):
    """An address that load must not be sent to, or that makes no sense."""


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """The two doors of one gateway."""

    http_host: str
    http_port: int
    grpc_host: str
    grpc_port: int

    @property
    def grpc_address(self) -> str:
        """host:port."""
        return f"{self.grpc_host}:{self.grpc_port}"

    @property
    def http_url(self) -> str:
        """Base URL without a trailing slash."""
        return f"http://{self.http_host}:{self.http_port}"


def parse_target(http: str, grpc: str, *, remote: bool = False) -> LoadTarget:
    """The target of an HTTP base URL and a host:port. TargetError beyond loopback, unless `remote` allows it."""
    url = urlsplit(http if "//" in http else f"http://{http}")
    if url.scheme != "http" or not url.hostname:
        raise TargetError(f"--host wants http://HOST:PORT, got {http!r}")
    door = urlsplit(f"//{grpc}")
    if not door.hostname or not door.port:
        raise TargetError(f"--grpc wants HOST:PORT, got {grpc!r}")
    for host in (url.hostname, door.hostname):
        if not remote and not is_loopback(host):
            raise TargetError(f"{host} is not on this machine; --remote allows load on a server of yours elsewhere")
    return LoadTarget(url.hostname, url.port or 80, door.hostname, door.port)


def is_loopback(host: str) -> bool:
    """Whether every address of `host` is a loopback one."""
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise TargetError(f"cannot resolve {host}: {error.strerror}") from error
    return all(ipaddress.ip_address(address).is_loopback for address in addresses)
