"""Hidden states beside the KV pages: what drafters are brought up to date with."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slipstream_kernels.jit.row_copies import copy_rows
from slipstream_kernels.models.capture_layers import Bits
from verify_service.hidden_states.rows import HiddenStateRows

_NONE = np.empty(0, np.int64)
_FEW_ROWS = 8
"""Copied without leaving the interpreter to others: to get it back from a thread that serves takes longer."""


@dataclass(slots=True, eq=False)
class _Copies:
    """Rows of `source`, and where each goes."""

    source: Bits
    rows: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)


class HiddenStateStore:
    """A block of rows for each KV page that was written while states were captured.

    It takes `limit` bytes of host memory at most, once there is a layout: where that is less than all pages need, the
    page written longest ago gives its block up. Pages are known by their ids, and must be forgotten before they get
    another owner.
    """

    def __init__(self, *, num_pages: int, page_size: int, hidden_size: int, limit: int) -> None:
        self._num_pages = num_pages
        self._page_size = page_size
        self._hidden_size = hidden_size
        self._limit = limit
        self.boundaries: tuple[int, ...] = ()
        self._rows: Bits = np.empty((0, 0), np.uint16)
        self._written: NDArray[np.bool_] = np.empty(0, np.bool_)
        self._blocks: OrderedDict[int, int] = OrderedDict()
        self._free: list[int] = []
        self._full: set[int] = set()
        copy_rows(self._rows, _NONE, self._rows, _NONE)  # is compiled, so that no step waits for it

    @property
    def pages(self) -> int:
        """Pages of which anything is kept."""
        return len(self._blocks)

    @property
    def capacity(self) -> int:
        """Pages that can be kept at once."""
        return len(self._written) // self._page_size

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that can be kept; the machine's memory is taken as they are written."""
        return self._rows.nbytes

    def lay_out(self, boundaries: tuple[int, ...]) -> None:
        """Keep the states of these boundaries from now on; what is kept is dropped. With none, the memory is freed."""
        self.boundaries = boundaries
        width = len(boundaries) * self._hidden_size
        blocks = min(self._num_pages, self._limit // (2 * width * self._page_size)) if width else 0
        self._rows = np.empty((blocks * self._page_size, width), np.uint16)
        self._written = np.zeros(blocks * self._page_size, np.bool_)
        self._blocks.clear()
        self._full.clear()
        self._free = list(range(blocks))[::-1]

    def forget(self, page: int) -> None:
        """The page is given up."""
        block = self._blocks.pop(page, None)
        if block is not None:
            self._full.discard(block)
            self._free.append(block)

    def write(self, kept: Sequence[tuple[Sequence[int], HiddenStateRows]]) -> None:
        """Keep states, at the boundaries of the layout, of positions of requests, each beside the pages it holds."""
        if not kept or not self.capacity:
            return
        located = [(pages, features, *features.located()) for pages, features in kept]  # before any counts as written
        copies: list[_Copies] = []  # in order: a page may lose its block to a later one
        for pages, features, source, rows in located:
            if not copies or copies[-1].source is not source:
                copies.append(_Copies(source))
            copies[-1].rows += rows
            self._make_room(pages, features.first, features.end, copies[-1].targets)
        for copy in copies:
            copy_rows(copy.source, np.array(copy.rows, np.int64), self._rows, np.array(copy.targets, np.int64))

    def write_single(self, source: Bits, kept: Sequence[tuple[Sequence[int], int, int]]) -> None:
        """Keep a row of `source` for each of these (pages, position, row of the source): requests that decode.

        As `write`, without an object for each request; a page counts as written when its first row is.
        """
        if not self.capacity:
            return
        size, written, known = self._page_size, self._written, self._blocks
        targets: list[int] = []
        for pages, position, _ in kept:  # in order: a page may lose its block to a later one
            number, low = divmod(position, size)
            block = known.get(pages[number]) if low else None
            start = (self._block(pages[number]) if block is None else block) * size
            targets.append(start + low)
            written[start + low] = True
            if low == size - 1 and written[start : start + size].all():
                self._full.add(start // size)
        rows = [row for *_, row in kept]
        if len(rows) <= _FEW_ROWS:
            self._rows[targets] = source[rows]
        else:
            copy_rows(source, np.array(rows, np.int64), self._rows, np.array(targets, np.int64))

    def _make_room(self, pages: Sequence[int], first: int, end: int, targets: list[int]) -> None:
        """Add where the rows of these positions go, which count as written."""
        size, written = self._page_size, self._written
        while first < end:
            number, low = divmod(first, size)
            high = min(size, low + end - first)
            block = self._block(pages[number])
            start = block * size
            targets += range(start + low, start + high)
            written[start + low : start + high] = True
            if high == size and written[start : start + size].all():
                self._full.add(block)
            first += high - low

    def reach(self, pages: Sequence[int], end: int) -> int:
        """As `HiddenStateHistory.reach`, of a request that holds `pages`."""
        at, size = end, self._page_size
        while at > 0 and (at - 1) // size < len(pages):
            page = pages[(at - 1) // size]
            low = (at - 1) // size * size
            at = low if self._blocks.get(page, -1) in self._full else at - len(self._tail(page, low, at))
            if at > low:
                break
        return at

    def read(self, pages: Sequence[int], first: int, end: int) -> HiddenStateRows | None:
        """As `HiddenStateHistory.read`, of a request that holds `pages`. A copy."""
        parts: list[Bits] = []
        at = end
        while at > first:
            number = (at - 1) // self._page_size
            low = max(first, number * self._page_size)
            rows = self._tail(pages[number], low, at) if number < len(pages) else self._rows[:0]
            if len(rows):
                parts.append(rows)
            at -= len(rows)
            if at > low:
                break
        return HiddenStateRows(self.boundaries, at, np.concatenate(parts[::-1])) if parts else None

    def _tail(self, page: int, first: int, end: int) -> Bits:
        """Rows of the positions from `first` to `end` - 1, all within a page, without those before a hole."""
        block = self._blocks.get(page)
        if block is None:
            return self._rows[:0]
        start = block * self._page_size + first % self._page_size
        stop = start + end - first
        holes = np.flatnonzero(~self._written[start:stop])
        return self._rows[start + (int(holes[-1]) + 1 if len(holes) else 0) : stop]

    def _block(self, page: int) -> int:
        """The block of a page; a page that has none gets one, of which nothing is written."""
        block = self._blocks.get(page)
        if block is None:
            block = self._free.pop() if self._free else self._blocks.popitem(last=False)[1]
            self._blocks[page] = block
            self._full.discard(block)
            self._written[block * self._page_size : (block + 1) * self._page_size] = False
        else:
            self._blocks.move_to_end(page)
        return block
