"""Trees read from the bytes that carry them (tree.proto as protocol buffers are written), and checked on the way.

A step waits for nothing but its trees while this is done, so it is done by compiled code, which makes no objects. It
reads what encoders write of a plain tree; for all else, malformed messages included, it leaves the word to a parser.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.token_tree import MAX_ROWS, TokenTree

Bytes = NDArray[np.uint8]
Int64 = NDArray[np.int64]

MOST_BYTES = 1 << 16
"""Of a message that is read here."""
_LEAST_BYTES = 4
"""Of a tree and what frames it: a message holds no more of them than such parts."""
_VARINT, _BYTES = 0, 2
"""Wire types."""
_REPLY = _TREE = _STAMP = 1 << 3 | _BYTES
_IDS, _PARENTS, _LOG_PROBS = (number << 3 | _BYTES for number in (2, 3, 4))
_STAMP_FIELDS = 5
_COUNT, _SCORED, _LARGEST, _DEPTH, _HEAD = range(_STAMP_FIELDS, _STAMP_FIELDS + 5)
"""Columns of a tree's head, and their number; the stamp's fields come first."""
_UNREAD = -1
_MOST_INT32, _MOST_UINT32 = (1 << 31) - 1, (1 << 32) - 1


class TreeMessage(NamedTuple):
    """A tree in order, as `TokenTree.validate` asks for whatever the limits, and the fields of its stamp."""

    stamp: tuple[int, int, int, int, int]
    tree: TokenTree


class TreeReader:
    """Reads messages that hold trees and nothing else. Not thread-safe."""

    __slots__ = ("_heads", "_log_probs", "_nodes")

    def __init__(self) -> None:
        self._make_room(1 << 10)
        self.read(b"")  # it is compiled now

    def read(self, message: bytes) -> list[TreeMessage] | None:
        """The trees of an ExchangeRequest; None for what has to be parsed, and is perhaps malformed."""
        if len(message) > len(self._log_probs):
            if len(message) > MOST_BYTES:
                return None
            self._make_room(MOST_BYTES)
        trees = _read(np.frombuffer(message, np.uint8), self._heads, self._nodes, self._log_probs)
        if trees < 0:
            return None
        found, first = [], 0
        for head in self._heads[:trees].tolist():
            count, scored, largest, depth = head[_COUNT:]
            end = first + count
            ids, parents, depths = self._nodes[:, first:end].tolist()
            log_probs = tuple(self._log_probs[first:end].tolist()) if scored else None
            tree = TokenTree.checked(tuple(ids), tuple(parents), log_probs, tuple(depths), depth, largest)
            found.append(TreeMessage(tuple(head[:_STAMP_FIELDS]), tree))
            first = end
        return found

    def _make_room(self, size: int) -> None:
        """For the trees of messages of so many bytes: each node takes more than one."""
        self._heads = np.zeros((size // _LEAST_BYTES, _HEAD), np.int64)
        self._nodes = np.zeros((3, size), np.int32)
        self._log_probs = np.zeros(size, np.float64)


@kernel
def _varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """The number at `at`, of 63 bits at most, and where the next thing begins; `_UNREAD` for that if it is none."""
    value = 0
    for count in range(9):
        if at + count >= end:
            return 0, _UNREAD
        byte = int(np.int64(data[at + count]))
        value |= (byte & 127) << (7 * count)
        if byte < 128:
            return value, at + count + 1
    return 0, _UNREAD


@kernel
def _frame(data: Bytes, at: int, end: int, tag: int) -> tuple[int, int]:
    """Where the content of a field with this tag begins and ends; `_UNREAD` for both if it is another or too long."""
    if at >= end or data[at] != tag:
        return _UNREAD, _UNREAD
    size, begin = _varint(data, at + 1, end)
    if begin < 0 or size > end - begin:
        return _UNREAD, _UNREAD
    return begin, begin + size


@kernel
def _read_stamp(data: Bytes, at: int, end: int, head: Int64) -> bool:
    """Fields left out are 0; each comes once, and the next one's number is higher."""
    head[:_STAMP_FIELDS] = 0
    last = 0
    while at < end:
        field, kind = data[at] >> 3, data[at] & 7
        if not (last < field <= _STAMP_FIELDS and kind == _VARINT):
            return False
        value, at = _varint(data, at + 1, end)
        if at < 0 or (value > _MOST_UINT32 and field not in (1, 3)):
            return False
        head[field - 1] = value
        last = field
    return True


@kernel
def _read_ids(data: Bytes, at: int, end: int, ids: NDArray[np.int32]) -> tuple[int, int]:
    """How many they are, and the largest of them, -1 of none; `_UNREAD` for the number if they cannot be."""
    count, largest = 0, -1
    while at < end:
        value, at = _varint(data, at, end)
        if at < 0 or value > _MOST_INT32 or count >= MAX_ROWS - 1:
            return _UNREAD, 0
        ids[count] = value
        largest = max(largest, value)
        count += 1
    return count, largest


@kernel
def _read_parents(
    data: Bytes, at: int, end: int, parents: NDArray[np.int32], depths: NDArray[np.int32]
) -> tuple[int, int]:
    """How many they are, and the greatest depth; `_UNREAD` for the number if a node is not behind its parent."""
    count, deepest = 0, 0
    while at < end:
        if count >= MAX_ROWS - 1:
            return _UNREAD, 0
        parent, depth = -1, 1
        if data[at] == 255:  # -1 has all bits set, of 64
            if at + 10 > end or data[at + 9] != 1:
                return _UNREAD, 0
            for byte in range(1, 9):
                if data[at + byte] != 255:
                    return _UNREAD, 0
            at += 10
        else:
            parent, at = _varint(data, at, end)
            if at < 0 or parent >= count:
                return _UNREAD, 0
            depth = depths[parent] + 1
        parents[count], depths[count] = parent, depth
        deepest = max(deepest, depth)
        count += 1
    return count, deepest


@kernel
def _read_log_probs(data: Bytes, at: int, end: int, log_probs: NDArray[np.float64]) -> int:
    """How many they are; `_UNREAD` if one is not finite."""
    size = end - at
    if size % 4 or size > 4 * (MAX_ROWS - 1):
        return _UNREAD
    values = data[at:end].copy().view(np.float32)
    for index in range(len(values)):
        if not np.isfinite(values[index]):
            return _UNREAD
        log_probs[index] = values[index]
    return len(values)


@kernel
def _read_tree(
    data: Bytes, at: int, end: int, head: Int64, nodes: NDArray[np.int32], log_probs: NDArray[np.float64]
) -> bool:
    """Fields in order, each at most once; all of `nodes` and `log_probs` are free."""
    begin, at = _frame(data, at, end, _STAMP)
    if begin < 0 or not _read_stamp(data, begin, at, head):
        return False
    ids = parents = scored = 0
    largest, depth = -1, 0
    begin, after = _frame(data, at, end, _IDS)
    if begin >= 0:
        at = after
        ids, largest = _read_ids(data, begin, at, nodes[0])
    begin, after = _frame(data, at, end, _PARENTS)
    if begin >= 0:
        at = after
        parents, depth = _read_parents(data, begin, at, nodes[1], nodes[2])
    begin, after = _frame(data, at, end, _LOG_PROBS)
    if begin >= 0:
        at = after
        scored = _read_log_probs(data, begin, at, log_probs)
    head[_COUNT], head[_SCORED], head[_LARGEST], head[_DEPTH] = ids, scored, largest, depth
    return at == end and 0 <= ids == parents and (scored == 0 or scored == ids)


@kernel
def _read(data: Bytes, heads: Int64, nodes: NDArray[np.int32], log_probs: NDArray[np.float64]) -> int:
    """How many trees the message holds, one behind the other in `nodes`; `_UNREAD` if it holds anything else."""
    at, end = 0, len(data)
    trees = first = 0
    while at < end:
        begin, at = _frame(data, at, end, _REPLY)
        if begin < 0:
            return _UNREAD
        begin, last = _frame(data, begin, at, _TREE)
        if begin < 0 or last != at:
            return _UNREAD
        if not _read_tree(data, begin, last, heads[trees], nodes[:, first:], log_probs[first:]):
            return _UNREAD
        first += heads[trees, _COUNT]
        trees += 1
    return trees
