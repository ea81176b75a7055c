"""The server's side of `DirectoryService`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

import grpc

from slipstream.directory.member import Member, checked_members, write_members
from slipstream.v1 import directory_pb2, directory_pb2_grpc

SERVICE_NAME: Final = "slipstream.v1.DirectoryService"


class DirectoryServicer:
    """Tells all watchers the list published last; before the first one they wait. For one event loop."""

    __slots__ = ("_changed", "_members")

    def __init__(self) -> None:
        self._members: tuple[Member, ...] | None = None
        self._changed = asyncio.Event()

    def register(self, server: grpc.aio.Server) -> None:
        """Add it to a server."""
        directory_pb2_grpc.add_DirectoryServiceServicer_to_server(self, server)

    def publish(self, members: Iterable[Member]) -> None:
        """Tell watchers this list. ValueError if two members share an address."""
        found = checked_members(members)
        if found != self._members:
            self._members = found
            self._changed.set()
            self._changed = asyncio.Event()

    async def Watch(  # noqa: N802  # the method's name in the schema
        self, request: directory_pb2.WatchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[directory_pb2.WatchResponse]:
        """See directory.proto. A slow watcher misses lists in between, never the last one."""
        while True:
            changed = self._changed
            if self._members is not None:
                yield write_members(self._members)
            await changed.wait()
