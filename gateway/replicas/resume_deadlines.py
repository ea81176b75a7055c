"""How long a request may go without progress once its service was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.replicas.resumable_stream import ResumableStream


class ResumeDeadlines:
    """One clock a stream: from its first loss, or from its arrival while it is let wait, to its next token.

    Nothing that happens between restarts or stops it: not the end of another service, not a trial, not a full queue,
    and not that a service has the stream again. `on_due` is called with a stream whose clock has run out. With
    0 seconds there are no clocks.
    """

    __slots__ = ("_clocks", "_on_due", "_seconds")

    def __init__(self, seconds: float, on_due: Callable[[ResumableStream], None]) -> None:
        self._seconds = seconds
        self._on_due = on_due
        self._clocks: dict[ResumableStream, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._clocks)

    def start(self, stream: ResumableStream) -> None:
        """Start a stream's clock unless it runs."""
        if self._seconds and stream not in self._clocks:
            self._clocks[stream] = asyncio.get_running_loop().call_later(self._seconds, self._ring, stream)

    def stop(self, stream: ResumableStream) -> None:
        """A token of it has come, or it is over."""
        clock = self._clocks.pop(stream, None)
        if clock is not None:
            clock.cancel()

    def _ring(self, stream: ResumableStream) -> None:
        del self._clocks[stream]
        self._on_due(stream)
