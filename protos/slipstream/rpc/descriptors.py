"""File descriptors of a process: as many as the system lets it have, and how they are divided."""

from __future__ import annotations

import resource
from typing import Final

RESERVED: Final = 256
"""Descriptors that connections from outside may not take: for files, pipes, listeners and other services."""

_FEWEST_CONNECTIONS: Final = 16
_UNLIMITED: Final = 1 << 20
"""What no limit at all counts as."""


def raise_limit() -> int:
    """Raise the limit of open descriptors to the highest that this process may have; returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # a system that states a higher limit than it grants
            return _finite(soft)
    return _finite(hard)


def limit() -> int:
    """The limit in force."""
    return _finite(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def connection_limit(share: float, most: int) -> int:
    """How many connections a port may hold open that gets `share` (0 to 1) of the descriptors, `most` at most.

    Shares that add up to 1 leave `RESERVED` descriptors to everything else, or half of them where there are few.
    """
    total = limit()
    free = total - min(RESERVED, total // 2)
    return max(_FEWEST_CONNECTIONS, min(most, int(free * share)))


def _finite(value: int) -> int:
    return _UNLIMITED if value == resource.RLIM_INFINITY else value
