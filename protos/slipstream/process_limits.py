"""What holds of a process that may be ended at any time: how much memory it takes, and whom it outlives."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Final

_MEMORY: Final = Path("/proc/self/statm")
_PR_SET_PDEATHSIG: Final = 1


def limit_memory(memory_bytes: int) -> None:
    """Let this process take `memory_bytes` of address space more than it has. Only Linux says how much it has."""
    if _MEMORY.exists():
        limit = int(_MEMORY.read_text("ascii").split()[0]) * resource.getpagesize() + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def end_with(parent: int) -> None:
    """Have this process killed when the thread that started it is gone, as with its process, however that died.

    `parent` is the process id: where that is gone already, this process ends at once.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit(1)
