"""`slipstream directory`: the members that a file lists, told to gateways on any host."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

import grpc

from launcher.services.commands import join_address
from launcher.services.tls_files import TlsFiles
from slipstream.directory.file import FileDirectory, read_file
from slipstream.directory.servicer import SERVICE_NAME, DirectoryServicer
from slipstream.rpc.lifecycle import run_until_terminated
from slipstream.rpc.logs import set_up_logging
from slipstream.rpc.server import GrpcServer

_log = logging.getLogger(__name__)

_LAST_SECONDS = 0.5
"""What calls get to end when the process stops."""


def run(path: Path, host: str, port: int, tls: TlsFiles | None = None) -> None:
    """Serve until SIGTERM or SIGINT. OSError or ValueError if the file is not fit at the start; UnavailableError if
    the port is taken.
    """
    set_up_logging("directory", "info", "text")
    read_file(path)
    asyncio.run(_serve(path, host, port, None if tls is None else tls.read().server_credentials()))


async def _serve(path: Path, host: str, port: int, credentials: grpc.ServerCredentials | None) -> None:
    servicer = DirectoryServicer()
    server = GrpcServer(
        host=host, port=port, services=[SERVICE_NAME], register=servicer.register, credentials=credentials
    )
    bound = await server.start()
    await server.set_serving(True)
    _log.info("listening grpc=%s", join_address(host, bound))
    following = asyncio.create_task(_follow(path, servicer))

    async def drain() -> None:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        await server.drain(_LAST_SECONDS)

    await run_until_terminated(drain)


async def _follow(path: Path, servicer: DirectoryServicer) -> None:
    async for members in FileDirectory(path).watch():
        servicer.publish(members)
        draining = sum(member.draining for member in members)
        _log.info("%s lists %d verify services, %d of them draining", path, len(members), draining)
