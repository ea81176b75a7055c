"""Ports for services that are started later: free now, and such as nobody takes in the meantime."""

from __future__ import annotations

import os
import random
import socket
import sys
from functools import cache
from pathlib import Path
from typing import Final

LOWEST: Final = 10_000
TRIES: Final = 256
MOST_CLAIMS: Final = 128
"""Of one process: by the time that it asks for more ports, what it started first is listening."""
_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports that are free now on `host`, all different.

    They lie below the range from which the system takes ports for connections, as far as there are any, and no other
    process that asks here gets them soon, as long as this one lives.
    """
    return [_free_port(host) for _ in range(count)]


def _free_port(host: str) -> int:
    above = _lowest_of_connections()
    draw = random.SystemRandom()  # forked processes draw different ones
    for _ in range(TRIES if above > LOWEST else 0):
        port = draw.randrange(LOWEST, above)
        if _claim(port) and _is_free(host, port):
            return port
    while True:
        with socket.socket() as listener:
            listener.bind((host, 0))
            port = int(listener.getsockname()[1])
            if _claim(port):
                return port


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind((host, port))
        except OSError:
            return False
    return True


def _claim(port: int) -> bool:
    """Take the name of a port in the system's abstract namespace, which this process's end gives back."""
    if port in _claims():
        return False
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    if sys.platform == "linux":
        try:
            claim.bind(f"\0slipstream port {port}")
        except OSError:
            claim.close()
            return False
    claims = _claims()
    claims[port] = claim.detach()
    if len(claims) > MOST_CLAIMS:
        os.close(claims.pop(next(iter(claims))))
    return True


@cache
def _claims() -> dict[int, int]:
    """Descriptors of what this process has claimed, by port, the oldest first."""
    return {}


def _lowest_of_connections() -> int:
    """0 where the system does not say."""
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
