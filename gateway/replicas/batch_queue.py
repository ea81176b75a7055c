"""What has arrived for a request and not been read yet."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class BatchQueue(Generic[T]):
    """A one-reader queue whose reader takes everything at once; for one event loop. Writers never wait.

    `items` are those that are unread.
    """

    __slots__ = ("_waiter", "items")

    def __init__(self) -> None:
        self.items: list[T] = []
        self._waiter: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self.items)

    def put(self, item: T) -> int:
        """Add an item and wake the reader; returns how many are unread."""
        self.items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        return len(self.items)

    def arrival(self) -> asyncio.Future[None]:
        """Done once there is an item. Only while there is none, and nobody waits."""
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    def taken(self) -> list[T]:
        """All items in order of arrival, which are the reader's now."""
        self._waiter = None
        items, self.items = self.items, []
        return items

    async def take(self) -> list[T]:
        """All items in order of arrival, waiting for the first one."""
        if not self.items:
            await self.arrival()
        return self.taken()
