"""Ports for services that are started later: free now, and such as no connection takes in the meantime."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from pathlib import Path

LOWEST = 10_000
TRIES = 64
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports that are free now on `host`, all different.

    They lie below the range from which the system takes ports for connections, as far as there are any.
    """
    with ExitStack() as stack:
        return [_bound(stack.enter_context(socket.socket()), host) for _ in range(count)]


def _bound(listener: socket.socket, host: str) -> int:
    above = _lowest_of_connections()
    for _ in range(TRIES if above > LOWEST else 0):
        try:
            listener.bind((host, random.randrange(LOWEST, above)))
        except OSError:
            continue
        return int(listener.getsockname()[1])
    listener.bind((host, 0))
    return int(listener.getsockname()[1])


def _lowest_of_connections() -> int:
    """0 where the system does not say."""
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
