"""The draft link's RPCs on an event loop of another thread, as in the verify service."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvloop

from slipstream.rpc.server import GrpcServer
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.draft_servicer import SERVICE, DraftLinkServicer

_DRAIN_SECONDS = 1.0


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
