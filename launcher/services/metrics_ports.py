"""Where the services of one host publish their metrics: on loopback, unless the operator says otherwise."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from launcher.services.free_ports import free_ports

VERIFY_PORT, DRAFT_PORT = 50062, 50063
LOOPBACK = "127.0.0.1"
FLAG = "--metrics-port"
_DECISIVE = frozenset({FLAG, "--host", "--config"})
"""Flags of a service that say, or may say, whether and where metrics are published."""


def metrics_flags(given: Sequence[str], variable: str, preferred: int, taken: Sequence[int] = ()) -> tuple[str, ...]:
    """Flags that have a service publish metrics at `preferred`, or at a free port where that one is taken.

    None where the `given` flags or the environment's `variable` decide it. `taken`: ports that others will listen on.
    """
    if variable in os.environ or any(flag.split("=")[0] in _DECISIVE for flag in given):
        return ()
    others = (port for port in free_ports(1 + len(taken)) if port not in taken)
    return FLAG, str(preferred if preferred not in taken and _is_free(preferred) else next(others))


def metrics_port(flags: Sequence[str]) -> int | None:
    """The port that `metrics_flags` chose; None if it chose none."""
    return int(flags[flags.index(FLAG) + 1]) if FLAG in flags[:-1] else None


def _is_free(port: int) -> bool:
    try:
        with socket.create_server((LOOPBACK, port)):
            return True
    except OSError:
        return False
