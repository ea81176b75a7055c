"""A gateway in this process, in front of a verify service without a model, and clients on the same event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import grpc
import uvloop

from fuzz.target import BrokenError
from fuzz.watch import all_tasks
from gateway.config import GatewaySettings
from gateway.server import serve
from support.cluster import free_ports
from support.fake_verify import FakeVerify
from support.models import write_tokenizer

MODEL = "tiny"
CONTEXT = VOCABULARY = 512
MOST_BODY = 1 << 16
_ANSWER_SECONDS = 60.0
"""Far beyond what any answer takes, however busy the machine is."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_HEALTH = b"GET /ready HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
_SPARE_TASKS = 4


class InGateway:
    """Belongs to the main thread, which runs the loop as far as an input needs."""

    def __init__(self, folder: Path) -> None:
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        write_tokenizer(folder, vocab_size=VOCABULARY, max_context=CONTEXT)
        self.verify = FakeVerify()
        self.verify.__enter__()
        self.verify.reset(tokens_per_step=64)
        self.loop = uvloop.new_event_loop()
        self._unheard: list[str] = []
        self.loop.set_exception_handler(lambda _loop, context: self._unheard.append(str(context)))
        asyncio.set_event_loop(self.loop)
        self._port, grpc_port = free_ports(2)
        settings = GatewaySettings(
            model=folder,
            verify=(self.verify.address,),
            max_body_bytes=MOST_BODY,
            http_port=self._port,
            grpc_port=grpc_port,
        )
        self._served = self.loop.create_task(serve(settings))
        self.run(self._started(grpc_port))
        self._tasks = len(all_tasks(self.loop))

    async def _started(self, grpc_port: int) -> None:
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}")
        limit = time.monotonic() + _ANSWER_SECONDS
        while True:
            try:
                if b"200 OK" in await self.converse([_HEALTH]):
                    return
            except OSError:
                pass  # it does not listen yet
            if self._served.done() or time.monotonic() > limit:
                raise BrokenError(f"the gateway does not start: {self._served}")
            await asyncio.sleep(0.05)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run the loop until it is done. BrokenError if that is never."""
        return self.loop.run_until_complete(asyncio.wait_for(work, _ANSWER_SECONDS))

    async def converse(self, parts: Sequence[bytes], *, end: bool = False, reset: bool = False) -> bytes:
        """Send the parts one after the other, and return all that is answered until the gateway closes.

        With `end` the sending side is shut down behind the last part; with `reset` nothing is read and the connection
        is torn down.
        """
        client = socket.socket()
        client.setblocking(False)
        try:
            await self.loop.sock_connect(client, ("127.0.0.1", self._port))
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reading = self.loop.create_task(_read(self.loop, client))
            try:
                for part in parts:
                    await self.loop.sock_sendall(client, part)
                    await asyncio.sleep(0)
                if end:
                    client.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # the gateway has closed before it has read everything
            if reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                reading.cancel()
                await asyncio.wait([reading])
                return b""
            return await reading
        finally:
            client.close()

    def check_unheard(self) -> None:
        """BrokenError if anything reached the loop itself."""
        if self._unheard:
            unheard, self._unheard[:] = list(self._unheard), []
            raise BrokenError("reached the loop: " + "; ".join(unheard))

    def check_tasks(self) -> None:
        """BrokenError if tasks of requests are left."""
        self.run(wait_until(lambda: len(all_tasks(self.loop)) <= self._tasks + _SPARE_TASKS))

    def close(self) -> None:
        """Stop both."""
        self.run(self.channel.close())
        self.run(self._stopped())
        self.verify.__exit__(
            None, None, None
        )  # before the loop is closed, to which gRPC's thread may still have to call
        self.loop.close()
        asyncio.set_event_loop(None)

    async def _stopped(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)  # which the gateway's own handler hears as long as the loop runs
        await asyncio.wait([self._served])


async def _read(loop: asyncio.AbstractEventLoop, client: socket.socket) -> bytes:
    answer = bytearray()
    try:
        while data := await loop.sock_recv(client, 1 << 16):
            answer += data
    except ConnectionError:
        pass  # closed before it had read everything: what came before is an answer all the same
    return bytes(answer)


async def wait_until(condition: Callable[[], bool]) -> None:
    """Let the loop run until it holds."""
    while not condition():  # noqa: ASYNC110 - the gateway tells nobody of its tasks
        await asyncio.sleep(1e-3)
