"""A directory that is a server of `DirectoryService`, and which form an address names."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import grpc

from slipstream.directory.file import FileDirectory
from slipstream.directory.member import Directory, Member, read_members
from slipstream.rpc.channel import from_rpc_error, open_channel
from slipstream.rpc.tls import Tls
from slipstream.transport_settings import checked_address
from slipstream.v1 import directory_pb2, directory_pb2_grpc

_log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS: Final = 0.1
LAST_RETRY_SECONDS: Final = 2.0

FILE: Final = "file:"
"""Stands before the path of a directory that is a file."""


def checked_directory(address: str) -> str:
    """The address of a directory, if it is file:PATH, host:port or unix:PATH; ValueError otherwise."""
    if address.startswith(FILE):
        if address == FILE:
            raise ValueError(f"{address!r} names no file")
        return address
    return checked_address(address)


def open_directory(address: str, tls: Tls | None = None) -> Directory:
    """The directory at an address that `checked_directory` lets pass."""
    if address.startswith(FILE):
        return FileDirectory(Path(address.removeprefix(FILE)))
    return RemoteDirectory(address, tls)


class RemoteDirectory:
    """See Directory. A server that is gone, or sends what is malformed, changes nothing and is dialled again."""

    __slots__ = ("_address", "_tls")

    def __init__(self, address: str, tls: Tls | None = None) -> None:
        self._address = address
        self._tls = tls

    async def watch(self) -> AsyncIterator[tuple[Member, ...]]:
        """See Directory."""
        delay, lost = FIRST_RETRY_SECONDS, False
        while True:
            try:
                async with open_channel(self._address, tls=self._tls) as channel:
                    stub: Any = directory_pb2_grpc.DirectoryServiceStub(channel)
                    async for message in stub.Watch(directory_pb2.WatchRequest()):
                        yield read_members(message)
                        delay, lost = FIRST_RETRY_SECONDS, False
                reason = "it ended the call"
            except grpc.RpcError as error:
                reason = from_rpc_error(error).message
            except ValueError as error:
                reason = str(error)
            if not lost:
                _log.warning("the directory at %s is away, its last list stays: %s", self._address, reason)
            lost = True
            await asyncio.sleep(delay * random.uniform(0.8, 1.2))
            delay = min(delay * 1.5, LAST_RETRY_SECONDS)
