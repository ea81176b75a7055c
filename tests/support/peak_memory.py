"""Peak memory of a process and those that it started (Linux)."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil


class PeakMemory:
    """What a tree of processes takes at its peak beyond what it had when this was made, in bytes.

    Each process's own peak counts, whenever that was, and one that is started in between counts whole.
    """

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._before = {}
        for process in self._tree():
            Path(f"/proc/{process}/clear_refs").write_text("5")
            self._before[process] = _status(process, "VmRSS")

    def grown(self) -> int:
        """The growth up to this moment."""
        grown = 0
        for process in self._tree():
            with contextlib.suppress(OSError):
                grown += max(0, _status(process, "VmHWM") - self._before.get(process, 0))
        return grown

    def _tree(self) -> list[int]:
        return [self._root.pid, *(child.pid for child in self._root.children(recursive=True))]


def _status(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(name)
