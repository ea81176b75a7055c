"""What a session's client is told of the prefix cache: a snapshot first, then each change, numbered."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from verify_service.kv_cache.cache_events import CacheChanges, CacheEvents

MAX_HASHES: Final = 65536
"""Hashes in one message: 512 KiB."""


class WatchCache:
    """A client asks to be told what the prefix cache holds, from a snapshot on."""


class CacheReport(NamedTuple):
    """One message of a watch; see CacheEvents in slipstream/v1/verify.proto."""

    sequence: int
    snapshot: bool
    added: tuple[int, ...]
    evicted: tuple[int, ...] = ()


class CachedPages:
    """Names of prefixes in the prefix cache, as far as events of the engine have told. One thread's."""

    __slots__ = ("_hashes", "known")

    def __init__(self) -> None:
        self.known = False  # whether all there is has been told, and each change since
        self._hashes: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._hashes)

    def apply(self, events: CacheEvents) -> None:
        """Take changes in, once all there is has been told."""
        if events.whole:
            self._hashes.clear()
            self.known = True
        if not self.known:
            return
        for each in events.evicted:
            self._hashes.pop(each, None)
        self._hashes.update(dict.fromkeys(events.added))

    def forget(self) -> None:
        """Changes are told no longer."""
        self._hashes.clear()
        self.known = False

    def parts(self) -> deque[tuple[int, ...]]:
        """All hashes, in parts that a message holds; one empty part if there are none."""
        hashes = tuple(self._hashes)
        return deque(hashes[at : at + MAX_HASHES] for at in range(0, len(hashes) or 1, MAX_HASHES))


class CacheWatch:
    """What one session has yet to be told.

    A client that reads too slowly for the changes gets another snapshot in their place, so that what waits is bounded.
    Sequence numbers grow by one a message.
    """

    __slots__ = ("_begins", "_changes", "_pages", "_parts", "_sequence")

    def __init__(self, pages: CachedPages) -> None:
        self._pages = pages
        self._changes = CacheChanges()
        self._parts: deque[tuple[int, ...]] = deque()
        self._begins = True  # with a snapshot that has yet to be taken
        self._sequence = 0

    @property
    def pending(self) -> bool:
        """Whether there is something to tell."""
        return (self._begins and self._pages.known) or bool(self._parts) or len(self._changes) > 0

    def begin(self) -> None:
        """Tell a snapshot next, and drop what it makes superfluous."""
        self._begins = True
        self._parts.clear()
        self._changes.clear()

    def note(self, events: CacheEvents) -> None:
        """The cache has changed, after `CachedPages` has taken it in."""
        if events.whole:
            self.begin()
        if self._begins:
            return
        self._changes.add(events.added)
        self._changes.evict(events.evicted)
        if len(self._changes) > MAX_HASHES:
            self.begin()

    def take(self) -> CacheReport | None:
        """The next message; None if there is nothing to tell."""
        if not self.pending:
            return None
        self._sequence += 1
        snapshot, self._begins = self._begins, False
        if snapshot:
            self._parts = self._pages.parts()
        if self._parts:
            return CacheReport(self._sequence, snapshot, self._parts.popleft())
        events = self._changes.take()
        assert events is not None
        return CacheReport(self._sequence, snapshot, events.added, events.evicted)
