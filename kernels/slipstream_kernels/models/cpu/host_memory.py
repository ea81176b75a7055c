"""How much memory of the host a process can still take."""

from __future__ import annotations

import resource
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_STATM = Path("/proc/self/statm")


def available_bytes() -> int:
    """What the machine has, or the control group or the process's own limit allows, whichever is least."""
    return max(0, min(_of_machine(), _of_control_group(), _of_limit()))


def _of_machine() -> int:
    fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def _of_control_group() -> int:
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        return int(limit) - used + _cached_files()
    except (OSError, ValueError, KeyError):  # "max" among them
        return 1 << 62


def _cached_files() -> int:
    """Bytes of files in memory, which the kernel gives back before it refuses any."""
    entries = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    return int(entries["inactive_file"]) + int(entries["active_file"])


def _of_limit() -> int:
    """What RLIMIT_AS, as of `ulimit -v`, leaves beyond the addresses in use."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return 1 << 62
    return limit - int(_STATM.read_text().split()[0]) * resource.getpagesize()
