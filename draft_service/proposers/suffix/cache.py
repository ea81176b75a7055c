"""Past responses, a suffix tree for each tenant and adapter: what is added and evicted, a bounded piece at a time.

No tree is ever shared: what one tenant's requests said shows in nobody else's drafts, hence not in their timing either.
The limits are shared. When they are reached, the largest tree gives up its oldest response, so that one busy tenant
does not cost the others theirs. Beyond `max_tenants` trees, the one that was longest without a new response is emptied.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from draft_service.proposers.suffix.memory import TERMINATOR
from draft_service.proposers.suffix.tree import SuffixTree

Key = tuple[str, str]
"""Tenant and adapter."""

PIECE = 128
"""Tokens added or evicted in one piece of work, well below a millisecond."""
_RELEASED = 4 << 20
"""Bytes of memory given back in one piece of work."""
_SMALLEST_EXTENT = 64


@dataclass(slots=True)
class TenantTree:
    """A tree and where its responses lie, oldest first: (position, length). Text is given out in powers of two."""

    tree: SuffixTree
    responses: deque[tuple[int, int]] = field(default_factory=deque)
    tokens: int = 0
    _top: int = 0
    _free: dict[int, list[int]] = field(default_factory=dict)

    def place(self, response: npt.NDArray[np.int32]) -> None:
        """Stage a response and begin it."""
        extent, free = self._extent(len(response))
        position = free.pop() if free else self._top
        self._top = max(self._top, position + extent)
        self.tree.stage(position, response)
        self.tree.stage(position + len(response), (TERMINATOR,))
        self.tree.begin(position)
        self.responses.append((position, len(response)))
        self.tokens += len(response)

    def forget_oldest(self) -> None:
        """The oldest response has left the tree; its room is free."""
        position, length = self.responses.popleft()
        self._extent(length)[1].append(position)
        self.tokens -= length

    def _extent(self, length: int) -> tuple[int, list[int]]:
        extent = max(_SMALLEST_EXTENT, 1 << length.bit_length())
        return extent, self._free.setdefault(extent, [])


@dataclass(slots=True)
class SuffixCache:
    """All trees of past responses. `max_requests` 0: nothing is kept."""

    max_depth: int
    max_requests: int
    max_tokens: int
    max_tenants: int = 256
    requests: int = 0
    tokens: int = 0
    _trees: dict[Key, TenantTree] = field(default_factory=dict)
    _waiting: deque[tuple[Key, npt.NDArray[np.int32]]] = field(default_factory=deque)
    _waiting_tokens: int = 0
    _leaving: deque[TenantTree] = field(default_factory=deque)
    _adding: TenantTree | None = None
    _evicting: Key | None = None
    _done: int = 0

    @property
    def evicting(self) -> bool:
        """Whether the next piece of work evicts."""
        return self._evicting is not None

    @property
    def size(self) -> int:
        """Bytes of memory that the trees have mapped."""
        return sum(each.tree.memory.size for each in self._trees.values())

    def address(self, key: Key) -> int:
        """Of the tree of past responses; 0 if there is none."""
        found = self._trees.get(key)
        return 0 if found is None else found.tree.memory.address

    def add(self, key: Key, response: npt.NDArray[np.int32]) -> None:
        """Note a response, which is kept as it is. One that does not fit is cut at its beginning, or not taken."""
        response = response[-self.max_tokens :]
        if len(response) and self.max_requests and self._waiting_tokens + len(response) <= self.max_tokens:
            self._waiting.append((key, response))
            self._waiting_tokens += len(response)

    def advance(self) -> bool:
        """Do one piece of work. Returns whether more remains."""
        if self._adding is not None:
            self._go_on_adding(self._adding)
        elif self._evicting is not None:
            self._go_on_evicting(self._evicting)
        elif self._leaving:
            if not self._leaving[0].tree.memory.release(_RELEASED):
                self._leaving.popleft()
        elif self._waiting:
            self._begin()
        return bool(self._waiting or self._leaving or self._adding is not None or self._evicting is not None)

    def _begin(self) -> None:
        key, response = self._waiting[0]
        full = self.requests >= self.max_requests or self.tokens + len(response) > self.max_tokens
        crowded = key not in self._trees and len(self._trees) >= self.max_tenants
        if full or crowded:
            idle = next(iter(self._trees))
            self._evicting = idle if crowded else max(self._trees, key=lambda each: self._trees[each].tokens)
            return
        self._waiting.popleft()
        self._waiting_tokens -= len(response)
        tree = self._trees.pop(key, None) or TenantTree(SuffixTree(self.max_depth, removable=True))
        self._trees[key] = self._adding = tree
        tree.place(response)
        self.requests += 1
        self.tokens += len(response)

    def _go_on_adding(self, tree: TenantTree) -> None:
        _, length = tree.responses[-1]
        count = min(PIECE, length + 1 - self._done)
        tree.tree.append(count)
        self._done += count
        if self._done == length + 1:
            self._adding, self._done = None, 0

    def _go_on_evicting(self, key: Key) -> None:
        tree = self._trees[key]
        position, length = tree.responses[0]
        count = min(PIECE, length - self._done)
        tree.tree.remove(position + self._done, count)
        self._done += count
        if self._done == length:
            tree.forget_oldest()
            self.requests -= 1
            self.tokens -= length
            self._evicting, self._done = None, 0
            if not tree.responses:
                self._leaving.append(self._trees.pop(key))
