"""The page table that kernels read, and what of it a mirror on a device has not seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32]


class PageTable:
    """One line a running request: the ids of its KV pages in the order of positions.

    `entries` is int32 [lines, pages of a full context], to be read only. Entries past a request's last page are stale.
    """

    def __init__(self, lines: int, pages: int) -> None:
        self.entries: IntArray = np.zeros((lines, pages), dtype=np.int32)
        self._changed: dict[int, tuple[int, int]] = {}

    def write(self, line: int, start: int, pages: Sequence[int]) -> None:
        """Set the entries of a line from `start` on."""
        if not pages:
            return
        end = start + len(pages)
        self.entries[line, start:end] = pages
        low, high = self._changed.get(line, (start, end))
        self._changed[line] = min(low, start), max(high, end)

    def take_changes(self) -> Iterator[tuple[int, int, IntArray]]:
        """(line, first entry, entries as they are now) of all that was written since the last call."""
        changed, self._changed = self._changed, {}
        for line, (low, high) in changed.items():
            yield line, low, self.entries[line, low:high].copy()
