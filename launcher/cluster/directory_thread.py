"""The directory in a thread of the controller's process: gateways watch it, and never speak to Ray."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Final

from launcher.services.commands import join_address
from slipstream.directory.member import Member
from slipstream.directory.servicer import SERVICE_NAME, DirectoryServicer
from slipstream.rpc.errors import SlipstreamError
from slipstream.rpc.server import GrpcServer
from slipstream.rpc.tls import Tls

RETRY_SECONDS: Final = 1.0


class DirectoryThread:
    """Serves until the process ends; a port that is taken is tried again and again. `error` says why it is not open.

    `port`: as asked for, from the opening on as bound.
    """

    def __init__(self, host: str, port: int, tls: Tls | None = None) -> None:
        self._host = host
        self.port = port
        self._tls = tls
        self._servicer = DirectoryServicer()
        self._loop = asyncio.new_event_loop()
        self._server: GrpcServer | None = None  # ends when nobody holds it
        self.error = "not open yet"
        self.address = join_address(host, port)
        threading.Thread(target=self._run, name="directory", daemon=True).start()

    def publish(self, members: Sequence[Member]) -> None:
        """Tell watchers this list. From any thread."""
        self._loop.call_soon_threadsafe(self._servicer.publish, tuple(members))

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._open())
        self._loop.run_forever()

    async def _open(self) -> None:
        while self.error:
            server = GrpcServer(
                host=self._host,
                port=self.port,
                services=[SERVICE_NAME],
                register=self._servicer.register,
                credentials=None if self._tls is None else self._tls.server_credentials(),
            )
            try:
                bound = await server.start()
            except SlipstreamError as error:
                self.error = error.message
                await asyncio.sleep(RETRY_SECONDS)
            else:
                await server.set_serving(True)
                self._server, self.port = server, bound
                self.address, self.error = join_address(self._host, bound), ""
