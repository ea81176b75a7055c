"""How much memory a text worker may take."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final

_MEMORY: Final = Path("/proc/self/statm")


def limit_memory(memory_bytes: int) -> None:
    """Let this process take `memory_bytes` of address space more than it has. Only Linux says how much it has."""
    if _MEMORY.exists():
        limit = int(_MEMORY.read_text("ascii").split()[0]) * resource.getpagesize() + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
