"""Replies that wait for the exchange to take them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from slipstream_kernels.draft_protocol.records import Reply, TreeReply


class ReplyQueue:
    """A queue of replies in order. Beyond `limit` the oldest trees are dropped, for they are stale; nothing else is.

    Used by one event loop alone, or by one thread that never waits.
    """

    __slots__ = ("_filled", "_limit", "_replies")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._replies: deque[Reply] = deque()
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._replies)

    def put(self, replies: Iterable[Reply]) -> None:
        """Add replies behind those that wait."""
        self._replies.extend(replies)
        excess = len(self._replies) - self._limit
        if excess > 0:
            kept: deque[Reply] = deque()
            for reply in self._replies:
                if excess > 0 and isinstance(reply, TreeReply):
                    excess -= 1
                else:
                    kept.append(reply)
            self._replies = kept
        if self._replies:
            self._filled.set()

    async def take(self, most: int) -> list[Reply]:
        """The oldest `most` replies or fewer; waits until there is one."""
        await self._filled.wait()
        return self.take_now(most)

    def take_now(self, most: int) -> list[Reply]:
        """The oldest `most` replies or fewer, which may be none."""
        if not self._replies:
            return []
        taken = [self._replies.popleft() for _ in range(min(most, len(self._replies)))]
        if not self._replies:
            self._filled.clear()
        return taken
