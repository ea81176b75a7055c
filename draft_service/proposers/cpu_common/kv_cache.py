"""Which sessions of a draft model have keys and values in which pages; idle ones make room for busy ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

from draft_service.proposers.base import Sampling
from slipstream_kernels.models.page_pool import OutOfPagesError, PagePool


@dataclass(slots=True)
class DraftSession:
    """A session's tokens and the pages that hold the keys and values of the first `cached` of them."""

    number: int
    tokens: list[int]
    prompt_length: int
    sampling: Sampling
    cached: int = 0
    pages: list[int] = field(default_factory=list)

    @property
    def pending(self) -> int:
        """Rows to compute before a tree can grow; the last token is always computed, for its logits."""
        return len(self.tokens) - min(self.cached, len(self.tokens) - 1)


class DraftCache:
    """Sessions in the order of their last use, and the pages they hold."""

    def __init__(self, pool: PagePool, page_size: int) -> None:
        self._pool = pool
        self._page_size = page_size
        self._sessions: OrderedDict[int, DraftSession] = OrderedDict()

    def __getitem__(self, number: int) -> DraftSession:
        return self._sessions[number]

    def add(self, session: DraftSession) -> None:
        self._sessions[session.number] = session

    def remove(self, number: int) -> None:
        session = self._sessions.pop(number, None)
        if session is not None:
            self._evict(session)

    def reserve(self, session: DraftSession, length: int, busy: Collection[int]) -> bool:
        """Give the session pages for `length` tokens; idle sessions lose theirs, longest idle first.

        Sessions numbered in `busy` keep their pages. Returns False when the rest does not suffice.
        """
        missing = -(-length // self._page_size) - len(session.pages)
        if missing > 0:
            self._make_room(missing, {*busy, session.number})
            try:
                session.pages.extend(self._pool.allocate(missing))
            except OutOfPagesError:
                return False
        self._sessions.move_to_end(session.number)
        return True

    def _make_room(self, pages: int, busy: Collection[int]) -> None:
        for session in list(self._sessions.values()):
            if self._pool.free_count >= pages:
                return
            if session.pages and session.number not in busy:
                self._evict(session)

    def _evict(self, session: DraftSession) -> None:
        self._pool.release_all(session.pages)
        session.pages.clear()
        session.cached = 0
