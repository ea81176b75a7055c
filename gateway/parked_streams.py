"""Choices that no verify service has at the moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gateway.resumable_stream import ResumableStream


class ParkedStreams:
    """Tickets in the order in which they are to go on. Some are not to be sent before a moment of their own."""

    __slots__ = ("_not_before",)

    def __init__(self) -> None:
        self._not_before: dict[ResumableStream, float] = {}

    def __len__(self) -> int:
        return len(self._not_before)

    def __iter__(self) -> Iterator[ResumableStream]:
        """Tickets in order; those that have left meanwhile are passed over."""
        for ticket in list(self._not_before):
            if ticket in self._not_before:
                yield ticket

    def add(self, ticket: ResumableStream, *, not_before: float = 0.0) -> None:
        """Let a ticket in, behind all others. `not_before` is a time of time.monotonic()."""
        self._not_before[ticket] = not_before

    def discard(self, ticket: ResumableStream) -> bool:
        """Let a ticket go; False if it is not there."""
        return self._not_before.pop(ticket, None) is not None

    def is_due(self, ticket: ResumableStream, now: float) -> bool:
        """Whether a ticket that is there may be sent."""
        return self._not_before[ticket] <= now

    def sort(self, key: Callable[[ResumableStream], Any]) -> None:
        """Put them in the order of `key`, equals as they are."""
        self._not_before = dict(sorted(self._not_before.items(), key=lambda place: key(place[0])))
