"""The gateway's end of the fork server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import asdict
from typing import Final

from gateway.text.fork_server import COMMAND, FORK, KILL, ForkServerOptions
from slipstream.packages import child_environment
from slipstream.rpc.errors import FailedPreconditionError

_ENVIRONMENT: Final = {"TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0"}
_MIB: Final = 1024 * 1024


class ServerProcess:
    """A fork server that has loaded tokenizer and template. OSError from its methods once it has gone."""

    __slots__ = ("_control", "_process")

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._process = process
        self._control = control

    @classmethod
    async def start(cls, options: ForkServerOptions, seconds: float) -> ServerProcess:
        """Start one. It must be started by the thread of the process that lives longest.

        FailedPreconditionError naming the file if tokenizer or template cannot be loaded within the time and memory
        allowed.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            process = _spawn(options, theirs.fileno())
        ours.setblocking(False)
        server = cls(process, ours)
        try:
            await server._wait_ready(options, seconds)
        except BaseException:
            server.close()
            raise
        return server

    def fork(self, number: int, connection: socket.socket) -> None:
        """Have a worker forked that serves `connection`. `number` names it from then on."""
        socket.send_fds(self._control, [COMMAND.pack(FORK, number)], [connection.fileno()])

    def kill(self, number: int) -> None:
        """Kill a worker, if it has not ended."""
        self._control.sendall(COMMAND.pack(KILL, number))

    async def wait_end(self) -> str:
        """Wait until it has gone; returns how."""
        with contextlib.suppress(OSError):  # a reset, where it had not read all commands
            while await asyncio.get_running_loop().sock_recv(self._control, 4096):
                pass
        self.close()
        return _ending(self._process.returncode)

    def close(self) -> None:
        """Kill it, and with it its workers."""
        self._control.close()
        self._process.kill()
        self._process.wait()

    async def _wait_ready(self, options: ForkServerOptions, seconds: float) -> None:
        reading, received = options.model, b""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                while data := await loop.sock_recv(self._control, 4096):
                    *lines, received = (received + data).split(b"\n")
                    for line in lines:
                        word, _, rest = line.decode("utf-8", "replace").partition(" ")
                        if word == "ready":
                            return
                        if word == "refused" and rest:
                            raise FailedPreconditionError(rest)
                        if word == "reading":
                            reading = rest
        except TimeoutError:
            raise FailedPreconditionError(f"{reading}: not loaded within {seconds:g} s") from None
        self._process.wait()
        memory = f"it may take {options.loading_memory_bytes // _MIB} MiB of memory"
        reason = f"loading ends its process, which {_ending(self._process.returncode)}; {memory}"
        raise FailedPreconditionError(f"{reading}: {reason}")


def _spawn(options: ForkServerOptions, control: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "gateway.text.fork_server", str(control), json.dumps(asdict(options))],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        pass_fds=[control],
        env={**os.environ, **child_environment(), **_ENVIRONMENT},
    )


def _ending(status: int) -> str:
    if status >= 0:
        return f"exited with status {status}"
    return f"was ended by {signal.Signals(-status).name}"
