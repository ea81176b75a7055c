"""The memory of a suffix tree: int32 arrays in mappings that grow in place, and the record by which kernels see them.

A mapping grows by `mremap`, which moves page tables and copies nothing, so that a tree of any size grows without a
pause; pages take memory when they are first written.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream_kernels.jit.intrinsics import record_at

FIELDS = 12
COUNT, PARENT, START, DEPTH, TOKEN, CHAIN, GROUP, PREV, NEXT, FIRST, LAST = range(11)
"""Fields of a node's row. The node stands for the tokens text[START : START + DEPTH]; its edge is what lies below its
parent's DEPTH and begins with TOKEN. COUNT: suffixes that have entered the edge. CHAIN: next node of its hash bucket.
PREV, NEXT, GROUP: its place among its siblings, which are sorted by count (`suffix.nodes`). FIRST, LAST: its children,
most frequent first. -1 stands for none."""

RING = 256
"""Slots for the active suffixes; a power of two above the largest depth."""
MAX_TREE_DEPTH = 250
TERMINATOR = -1
"""The token that ends a sequence; no real token equals it."""
FIRST_BUCKETS = 64

_NAMES = (
    *("nodes", "groups", "heads", "text", "leaves", "edges", "node_top", "node_free", "group_top", "group_free"),
    *("live", "buckets", "half", "max_depth", "first", "end"),
)
_RECORD = np.dtype([(name, np.int64) for name in _NAMES])
tree_at = record_at(_RECORD)
"""The record of a tree at an address: addresses of the arrays (leaves: 0 where nothing will be removed), tops and free
lists, live nodes, hash buckets and the largest power of two not above their number, and the text's state: suffixes that
start at `first` to `end` - 1 are active, text before `end` is in the tree."""

_PAGE = mmap.PAGESIZE


class _Region:
    """One mapping. Anonymous and private, so that it can grow; on systems without mremap it is copied."""

    __slots__ = ("_map", "size")

    def __init__(self, size: int) -> None:
        self.size = -(-size // _PAGE) * _PAGE
        self._map = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def grow(self, size: int) -> None:
        """To at least `size` bytes, and by a quarter at least. No array over it may be alive."""
        self.size = -(-max(size, self.size + self.size // 4) // _PAGE) * _PAGE
        try:
            self._map.resize(self.size)
        except SystemError:
            old, self._map = self._map, mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._map[: len(old)] = old[:]

    def shrink(self, size: int) -> None:
        """Give back up to `size` bytes, all but a page."""
        self.size = max(_PAGE, self.size - size // _PAGE * _PAGE)
        with suppress(SystemError):
            self._map.resize(self.size)

    def array(self) -> npt.NDArray[np.int32]:
        return np.frombuffer(self._map, np.int32)

    @property
    def address(self) -> int:
        return int(self.array().ctypes.data)


class TreeMemory:
    """Arrays of one tree and the record at `address`. `reserve_*` must come before kernels that need the room."""

    __slots__ = (
        "_edges",
        "_groups",
        "_heads",
        "_leaves",
        "_nodes",
        "_record",
        "_room",
        "_text",
        "address",
        "text_room",
    )

    def __init__(self, max_depth: int, *, tokens: int, removable: bool) -> None:
        if not 1 <= max_depth <= MAX_TREE_DEPTH:
            raise ValueError(f"depth {max_depth} is outside 1 to {MAX_TREE_DEPTH}")
        self._record: npt.NDArray[Any] = np.zeros(1, _RECORD)
        self.address = int(self._record.ctypes.data)
        self._edges = np.zeros(RING, np.int32)
        self._nodes, self._groups, self._heads = _Region(4 * FIELDS), _Region(8), _Region(4 * FIRST_BUCKETS)
        self._text = _Region(4 * (tokens + 2))
        self._leaves = _Region(4 * (tokens + 2)) if removable else None
        self._room = 0
        self.text_room = 0
        record = self._record[0]
        record["max_depth"], record["edges"] = max_depth, self._edges.ctypes.data
        self._point()

    def __getitem__(self, name: str) -> int:
        """A field of the record."""
        return int(self._record[name][0])

    def __setitem__(self, name: str, value: int) -> None:
        self._record[name][0] = value

    @property
    def text(self) -> npt.NDArray[np.int32]:
        """The tokens, for a moment: the array must not be kept, since memory over which one lives cannot grow."""
        return self._text.array()

    @property
    def size(self) -> int:
        """Bytes of all mappings, untouched pages included."""
        leaves = 0 if self._leaves is None else self._leaves.size
        return self._nodes.size + self._groups.size + self._heads.size + self._text.size + leaves

    def reserve_nodes(self, more: int) -> None:
        """Make room for `more` further nodes."""
        needed = self["node_top"] + more + 1
        if needed > self._room:
            self._nodes.grow(4 * FIELDS * needed)
            self._groups.grow(8 * (self._nodes.size // (4 * FIELDS)))
            self._heads.grow(4 * (self._nodes.size // (4 * FIELDS) + FIRST_BUCKETS))
            self._point()

    def reserve_text(self, end: int) -> None:
        """Make room for the text before position `end` and one token more."""
        if end >= self.text_room:
            self._text.grow(4 * (end + 1))
            if self._leaves is not None:
                self._leaves.grow(4 * (end + 1))
            self._point()

    def release(self, size: int) -> bool:
        """Give back up to `size` bytes of a tree that is no longer used; returns whether more can be given back."""
        regions = [self._nodes, self._groups, self._heads, self._text, *filter(None, [self._leaves])]
        max(regions, key=lambda region: region.size).shrink(size)
        return any(region.size > _PAGE for region in regions)

    def _point(self) -> None:
        self["nodes"], self["groups"], self["heads"] = self._nodes.address, self._groups.address, self._heads.address
        self["text"] = self._text.address
        self["leaves"] = 0 if self._leaves is None else self._leaves.address
        self._room = min(
            self._nodes.size // (4 * FIELDS), self._groups.size // 8, self._heads.size // 4 - FIRST_BUCKETS
        )
        self.text_room = self._text.size // 4
