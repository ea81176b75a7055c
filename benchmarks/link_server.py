"""Draft links in this process: their RPCs on an event loop of another thread, as in the verify service."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvloop

from slipstream.rpc.server import GrpcServer
from slipstream_kernels.exchange.in_process import HostLimits
from slipstream_kernels.models.boundaries import boundaries_of
from slipstream_kernels.models.config import ModelConfig
from slipstream_kernels.token_tree import MAX_ROWS, TokenTree
from verify_service.draft_link import DraftLink
from verify_service.draft_records import LinkFacts
from verify_service.draft_servicer import SERVICE, DraftLinkServicer
from verify_service.in_process import attach_host, load_host
from verify_service.link_types import LinkConfig, LinkState
from verify_service.request import RequestKey
from verify_service.tree_source import Committed

__all__ = ["DraftLink", "LinkServer", "LinkState", "Span", "TimedLink", "attached_here", "link_servers", "timed_link"]

Span = tuple[float, float]
"""Begin and end, time.perf_counter()."""

_DRAIN_SECONDS = 1.0
_STOP_SECONDS = 10.0


class TimedLink(DraftLink):
    """A link that keeps the times of its commits and collections."""

    def __init__(self, facts: LinkFacts, config: LinkConfig) -> None:
        super().__init__(facts, config)
        self.commits: list[Span] = []
        self.collections: list[Span] = []

    def commit(self, commits: Sequence[Committed]) -> None:
        begun = time.perf_counter()
        super().commit(commits)
        self.commits.append((begun, time.perf_counter()))

    def collect(self, wanted: Sequence[RequestKey]) -> list[TokenTree | None]:
        begun = time.perf_counter()
        trees = super().collect(wanted)
        self.collections.append((begun, time.perf_counter()))
        return trees


def timed_link(config: ModelConfig, transports: tuple[str, ...], *, deadline: float, boundaries: int) -> TimedLink:
    """A link to a model, with states at so many boundaries at once; steps wait for trees until the deadline."""
    facts = LinkFacts(
        model_fingerprint="model",
        tokenizer_fingerprint="tokenizer",
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        max_context=config.max_context,
        max_nodes=MAX_ROWS,
        feature_boundaries=tuple(boundaries_of(config.num_layers)),
        most_boundaries=boundaries,
    )
    return TimedLink(facts, LinkConfig(deadline=deadline, transports=transports))


@contextmanager
def attached_here(link: DraftLink, spec: str, device: str) -> Iterator[None]:
    """A proposer of this process is attached to a link, which is closed at the end."""
    host = load_host((spec,), HostLimits(device=device))
    try:
        attach_host(link, host)
        yield
    finally:
        link.close()
        host.stop(_STOP_SECONDS)


class LinkServer:
    """Listens on loopback. Draft services that dial it are told to come again until a link is `serve`d."""

    def __init__(self) -> None:
        """Use `link_servers`."""
        self.port = 0
        self._servicer = DraftLinkServicer()
        self._server = GrpcServer(host="127.0.0.1", port=0, services=[SERVICE], register=self._servicer.register)

    @contextmanager
    def serve(self, link: DraftLink) -> Iterator[None]:
        """Let draft services attach to `link`, which is closed at the end."""
        self._servicer.link = link
        try:
            yield
        finally:
            self._servicer.link = None
            link.close()

    async def start(self) -> None:
        """Take a free port."""
        self.port = await self._server.start()

    async def stop(self) -> None:
        """End all calls."""
        await self._server.drain(_DRAIN_SECONDS)


@contextmanager
def link_servers(count: int) -> Iterator[list[LinkServer]]:
    """So many servers on free ports, stopped at the end."""
    events = uvloop.new_event_loop()
    thread = threading.Thread(target=events.run_forever, daemon=True)
    thread.start()

    async def make() -> list[LinkServer]:
        servers = [LinkServer() for _ in range(count)]
        await asyncio.gather(*(server.start() for server in servers))
        return servers

    async def stop(servers: list[LinkServer]) -> None:
        await asyncio.gather(*(server.stop() for server in servers))

    servers = asyncio.run_coroutine_threadsafe(make(), events).result()
    try:
        yield servers
    finally:
        asyncio.run_coroutine_threadsafe(stop(servers), events).result()
        events.call_soon_threadsafe(events.stop)
        thread.join()
        events.close()
