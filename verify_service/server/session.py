"""Client sessions: each gathers the outputs of its requests until its stream can take them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from slipstream.rpc.errors import InvalidArgumentError, SlipstreamError
from verify_service.core.adapters import AdapterList
from verify_service.core.request import StepOutput
from verify_service.kv_cache.cache_events import CacheEvents
from verify_service.server.cache_watch import CachedPages, CacheReport, CacheWatch

MAX_OUTPUTS = 256
"""Outputs in one message, which keeps it far below the message limit."""


class Taken(NamedTuple):
    """What one message carries; nothing at the end of a session."""

    outputs: list[StepOutput]
    started: list[int]
    cache: CacheReport | None = None
    adapters: AdapterList | None = None

    @property
    def is_end(self) -> bool:
        return not (self.outputs or self.started) and self.cache is None and self.adapters is None


@dataclass(slots=True, eq=False)
class Session:
    """One stream of one client. Belongs to the event loop's thread.

    A client that reads slowly gets several steps in one message; what waits here is bounded by the limits of the
    requests themselves.
    """

    session_id: int
    active: set[int] = field(default_factory=set)
    waiting: deque[StepOutput] = field(default_factory=deque)
    started: list[int] = field(default_factory=list)
    cache: CacheWatch | None = None
    adapters: AdapterList | None = None
    """All that are loaded, where the client has to be told."""
    filled: asyncio.Event = field(default_factory=asyncio.Event)
    sent: asyncio.Event = field(default_factory=asyncio.Event)
    half_closed: bool = False
    ended: SlipstreamError | None = None

    def begin(self, request_id: int) -> None:
        """Note a request. InvalidArgumentError, which is the end of the stream, if its id is in use."""
        if request_id in self.active:
            raise InvalidArgumentError(f"request_id {request_id} is in use in this session", field="request_id")
        self.active.add(request_id)

    def start(self, request_ids: Iterable[int]) -> None:
        """Requests begin to run. The stream is told even if no output waits."""
        self.started.extend(request_ids)
        self.sent.clear()
        self.filled.set()

    def put(self, outputs: Iterable[StepOutput]) -> None:
        """Add one step's outputs."""
        for output in outputs:
            self.waiting.append(output)
            if output.finish_reason is not None:
                self.active.discard(output.key.request_id)
        self.sent.clear()
        self.filled.set()

    def watch_cache(self, pages: CachedPages) -> None:
        """The client asks for a snapshot of the prefix cache and for changes from then on."""
        if self.cache is None:
            self.cache = CacheWatch(pages)
        self.cache.begin()
        self.filled.set()

    def cached(self, events: CacheEvents) -> None:
        """The prefix cache has changed."""
        if self.cache is not None:
            self.cache.note(events)
            self.filled.set()

    def tell_adapters(self, adapters: AdapterList) -> None:
        """Those that requests may name have changed."""
        self.adapters = adapters
        self.filled.set()

    def end(self, reason: SlipstreamError) -> None:
        """Let the stream fail with `reason` once all outputs have been sent."""
        self.ended = reason
        self.filled.set()

    def half_close(self) -> None:
        """The client sends no more; the stream ends when everything is answered."""
        self.half_closed = True
        self.filled.set()

    async def take(self) -> Taken:
        """Wait for outputs, requests that start, and news of the cache and of adapters.

        All are empty when the client has half-closed and all is answered.

        Raises the reason of the end when nothing is left.
        """
        while not (self.waiting or self.started or self.adapters is not None or self._cache_pending):
            self.sent.set()
            if self.ended is not None:
                raise self.ended
            if self.half_closed and not self.active:
                return Taken([], [])
            self.filled.clear()
            await self.filled.wait()
        started, self.started = self.started, []
        outputs = [self.waiting.popleft() for _ in range(min(MAX_OUTPUTS, len(self.waiting)))]
        adapters, self.adapters = self.adapters, None
        return Taken(outputs, started, None if self.cache is None else self.cache.take(), adapters)

    @property
    def _cache_pending(self) -> bool:
        return self.cache is not None and self.cache.pending
