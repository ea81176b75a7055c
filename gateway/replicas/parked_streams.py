"""Streams that wait for a verify service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gateway.replicas.resumable_stream import ResumableStream


class ParkedStreams:
    """Streams in the order in which they go on, each with the time before which it is not sent."""

    __slots__ = ("_not_before",)

    def __init__(self) -> None:
        self._not_before: dict[ResumableStream, float] = {}

    def __len__(self) -> int:
        return len(self._not_before)

    def __iter__(self) -> Iterator[ResumableStream]:
        """Yield streams in order, without those that have left meanwhile."""
        for stream in list(self._not_before):
            if stream in self._not_before:
                yield stream

    def add(self, stream: ResumableStream, *, not_before: float = 0.0) -> None:
        """Park a stream behind all others. not_before: time.monotonic(), seconds."""
        self._not_before[stream] = not_before

    def discard(self, stream: ResumableStream) -> bool:
        """Remove a stream. Return whether it was parked."""
        return self._not_before.pop(stream, None) is not None

    def is_due(self, stream: ResumableStream, now: float) -> bool:
        """Return whether a parked stream may be sent."""
        return self._not_before[stream] <= now

    def sort(self, key: Callable[[ResumableStream], Any]) -> None:
        """Put them in the order of `key`, equals as they are."""
        self._not_before = dict(sorted(self._not_before.items(), key=lambda place: key(place[0])))
