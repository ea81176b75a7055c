"""Where each n-gram of a text last ended, and before that; the trie of what followed. Compiled.

For every length n there is a hash from n-grams to the newest position just after one that has a token, and for every
position the one before it of the same n-gram. So a look-up costs the matches it visits, whatever the text's length, and
an appended token one hash operation for each n.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from draft_service.proposers.jit import compiled
from slipstream_kernels.jit.intrinsics import pointer_i32, record_at
from slipstream_kernels.token_tree import MAX_ROWS, TokenTree

_INDEX = np.dtype(
    [(name, np.int64) for name in ("text", "earlier", "table", "slots", "shortest", "longest", "length", "indexed")]
)
_index_at = record_at(_INDEX)
_MULTIPLIER = 0x9E3779B1
_SMALLEST = 256


class NgramIndex:
    """Tokens of one session and the index of those before `indexed`. `lengths`: of the n-grams, ascending."""

    __slots__ = ("_address", "_earlier", "_record", "_table", "_text", "length", "lengths")

    def __init__(self, lengths: range, tokens: Sequence[int]) -> None:
        self.lengths = lengths
        self.length = 0
        self._text = self._earlier = self._table = np.zeros(0, np.int32)
        self._record: Any = np.zeros(1, _INDEX)
        self._record["shortest"], self._record["longest"] = lengths[0], lengths[-1]
        self._address = int(self._record.ctypes.data)
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens, which are not indexed yet."""
        end = self.length + len(tokens)
        if end > len(self._text):
            self._grow(max(_SMALLEST, 2 * end))
        self._text[self.length : end] = tokens
        self.length = end
        self._record["length"] = end

    def advance(self, limit: int) -> bool:
        """Index up to `limit` further tokens; returns whether all are indexed now."""
        return index_tokens(self._address, limit)

    def tree(
        self,
        room: TrieRoom,
        *,
        max_nodes: int,
        max_depth: int,
        max_matches: int,
        trust: int,
    ) -> TokenTree | None:
        """Merge the continuations of all matches into a tree of at most `max_nodes` nodes, the root not counted."""
        made = look_up(self._address, room.address, max_nodes, max_depth, max_matches, trust)
        return room.tree(made) if made else None

    def _grow(self, capacity: int) -> None:
        """Room for `capacity` tokens. What was indexed has to be indexed again, piece by piece."""
        text = np.empty(capacity, np.int32)
        text[: self.length] = self._text[: self.length]
        slots = 1 << (2 * capacity * len(self.lengths) - 1).bit_length()
        self._text, self._table = text, np.full(slots, -1, np.int32)
        self._earlier = np.empty(capacity * len(self.lengths), np.int32)
        for name in ("text", "earlier", "table"):
            self._record[name] = getattr(self, f"_{name}").ctypes.data
        self._record["slots"], self._record["indexed"] = slots, 0


class TrieRoom:
    """Where `look_up` leaves a tree: token ids, parents, and the positions of matches that it visited."""

    __slots__ = ("_rows", "address")

    def __init__(self, max_matches: int) -> None:
        self._rows: npt.NDArray[np.int32] = np.zeros(2 * MAX_ROWS + max_matches, np.int32)
        self.address = int(self._rows.ctypes.data)

    def tree(self, nodes: int) -> TokenTree:
        """The tree of so many nodes that was left here."""
        tokens, parents = self._rows[:nodes].tolist(), self._rows[MAX_ROWS : MAX_ROWS + nodes].tolist()
        return TokenTree(tuple(tokens), tuple(parents))


@compiled
def index_tokens(address: int, limit: int) -> bool:
    """See `NgramIndex.advance`."""
    t = _index_at(address)
    text, earlier, table = pointer_i32(t.text), pointer_i32(t.earlier), pointer_i32(t.table)
    end = min(t.length, t.indexed + limit)
    lengths = t.longest - t.shortest + 1
    for position in range(t.indexed, end):
        gram = np.uint64(0)
        for n in range(1, min(t.longest, position) + 1):
            gram = _longer(gram, text[position - n])
            if n >= t.shortest:
                code = position * lengths + n - t.shortest
                slot = _slot(t, gram, position, n)
                before = table[slot]
                earlier[code] = before // lengths if before >= 0 else -1
                table[slot] = code
    t.indexed = end
    done: bool = end == t.length
    return done


@compiled
def _longer(gram: Any, token: int) -> Any:
    """Hash of an n-gram with one more token before it."""
    mixed = (gram ^ np.uint64(token)) * np.uint64(_MULTIPLIER) + np.uint64(0x7F4A7C15)
    return mixed ^ (mixed >> np.uint64(29))


@compiled
def _slot(t: Any, gram: Any, position: int, n: int) -> int:
    """Slot of the n-gram before a position: the one that holds it, or an empty one."""
    text, table = pointer_i32(t.text), pointer_i32(t.table)
    lengths = t.longest - t.shortest + 1
    slot: int = (np.int64(gram >> np.uint64(1)) + n) & (t.slots - 1)
    while True:
        code = table[slot]
        if code < 0:
            return slot
        if code % lengths == n - t.shortest:
            other, same = code // lengths, 1
            while same <= n and text[other - same] == text[position - same]:
                same += 1
            if same > n:
                return slot
        slot = (slot + 1) & (t.slots - 1)


@compiled
def look_up(address: int, room: int, max_nodes: int, max_depth: int, max_matches: int, trust: int) -> int:
    """Visit matches of the text's end, longest n first and most recent first; returns the nodes of the trie."""
    t = _index_at(address)
    text, earlier, table = pointer_i32(t.text), pointer_i32(t.earlier), pointer_i32(t.table)
    rows, lengths = pointer_i32(room), t.longest - t.shortest + 1
    made = visited = 0
    for less in range(lengths):
        n = t.longest - less
        if n > t.length:
            continue
        gram = np.uint64(0)
        for i in range(1, n + 1):
            gram = _longer(gram, text[t.length - i])
        code = table[_slot(t, gram, t.length, n)]
        position = code // lengths if code >= 0 else -1
        while position >= 0 and visited < max_matches and made < max_nodes:
            known = False
            for i in range(visited):
                known |= rows[2 * MAX_ROWS + i] == position
            if not known:
                rows[2 * MAX_ROWS + visited] = position
                visited += 1
                made = _merge(t, rows, made, position, min(max_depth, trust * n), max_nodes)
            position = earlier[position * lengths + n - t.shortest]
    return made


@compiled
def _merge(t: Any, rows: Any, made: int, position: int, most: int, max_nodes: int) -> int:
    """Add the continuation from a position to the trie of `made` nodes; returns how many there are then."""
    text = pointer_i32(t.text)
    node = -1
    for at in range(position, min(position + most, t.length)):
        child = 0
        while child < made and not (rows[child] == text[at] and rows[MAX_ROWS + child] == node):
            child += 1
        if child == made:
            if made == max_nodes:
                return made
            rows[child], rows[MAX_ROWS + child] = text[at], node
            made += 1
        node = child
    return made
