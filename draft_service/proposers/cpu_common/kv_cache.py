"""Which sessions of a draft model have keys and values in which pages; idle ones make room for busy ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

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

    def fork(self, base: DraftSession, fork: DraftSession) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Add a session whose tokens begin with those of `base`. It shares the pages that `base` has filled.

        Returns slots of the last page, and the fork's own to which their keys and values have to be copied.
        """
        self.add(fork)
        filled, left = divmod(base.cached, self._page_size)
        fork.pages = base.pages[:filled]
        for page in fork.pages:
            self._pool.retain(page)
        fork.cached = filled * self._page_size
        if left and not self.reserve(fork, base.cached, (base.number,)):
            left = 0
        fork.cached += left
        slots = np.arange(left, dtype=np.int32)
        if not left:
            return slots, slots
        first, second = (session.pages[filled] * self._page_size for session in (base, fork))
        return slots + np.int32(first), slots + np.int32(second)

    def adopt(self, number: int, fork: int) -> None:
        """The session goes on with its fork's tokens, and its pages unless it has more itself; the fork is removed."""
        session, forked = self._sessions[number], self._sessions[fork]
        if forked.cached >= session.cached:
            session.pages, forked.pages = forked.pages, session.pages
            session.cached = forked.cached
        session.tokens = forked.tokens
        self.remove(fork)

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
