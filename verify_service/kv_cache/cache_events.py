"""What changes in the prefix cache, for gateways that choose a service by what it has cached."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class TellCache:
    """A command to the engine: tell what the prefix cache holds, all of it first, or do so no longer."""

    wanted: bool


class CacheEvents(NamedTuple):
    """Names of prefixes (slipstream.prefix_hash) whose last page has come into the cache, and of those it has left."""

    added: tuple[int, ...]
    evicted: tuple[int, ...]
    whole: bool = False
    """Whether `added` is all there is, not what has changed."""


class CacheChanges:
    """Net changes since they were taken last: a page that came and went in between is in neither list."""

    __slots__ = ("_added", "_evicted", "_whole")

    def __init__(self, *, whole: bool = False) -> None:
        """`whole`: the first changes taken are all there is."""
        self._added: dict[int, None] = {}
        self._evicted: dict[int, None] = {}
        self._whole = whole

    def __len__(self) -> int:
        return len(self._added) + len(self._evicted)

    def add(self, hashes: Iterable[int]) -> None:
        """Pages have come."""
        for each in hashes:
            if each in self._evicted:
                del self._evicted[each]
            else:
                self._added[each] = None

    def evict(self, hashes: Iterable[int]) -> None:
        """Pages have gone."""
        for each in hashes:
            if each in self._added:
                del self._added[each]
            else:
                self._evicted[each] = None

    def take(self) -> CacheEvents | None:
        """Changes since the last call; None if there are none."""
        if not (self._added or self._evicted or self._whole):
            return None
        events = CacheEvents(tuple(self._added), tuple(self._evicted), self._whole)
        self.clear()
        return events

    def clear(self) -> None:
        """Forget the changes so far."""
        self._added.clear()
        self._evicted.clear()
        self._whole = False
