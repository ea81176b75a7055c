"""Grammars are tried out in a process that can be ended, before this one works on them."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from slipstream.grammar.grammar import Grammar
from slipstream.packages import child_environment
from slipstream.rpc.errors import InvalidArgumentError, ResourceExhaustedError, SlipstreamError
from verify_service.grammar.trial_server import BUSY, OUT_OF_PATIENCE, OUT_OF_TIME, TrialServerOptions

TRIAL_SECONDS: Final = 2.0
"""Of a processor: the longest that a grammar may take to compile, however busy the machine is."""
_PATIENCE_SECONDS: Final = 120.0
"""Longer than the server takes to load any tokenizer, and a trial."""
_RETRY_SECONDS: Final = 1.0


class GrammarTrials:
    """Thread-safe. The server is started with the first trial, and again where it has gone."""

    def __init__(
        self, folder: Path, *, vocab_size: int, eos_token_ids: Sequence[int], seconds: float = TRIAL_SECONDS
    ) -> None:
        self._options = TrialServerOptions(os.fspath(folder), vocab_size, tuple(eos_token_ids), seconds)
        self._lock = threading.Lock()
        self._server: _Server | None = None

    @property
    def seconds(self) -> float:
        """Of a processor, the longest that a trial takes."""
        return self._options.seconds

    def start(self) -> None:
        """Start the server, unless it runs; `run` does, too. It loads its tokenizer meanwhile."""
        with self._lock:
            self._started()

    def run(self, grammar: Grammar) -> None:
        """Return once a grammar is known to compile in time.

        Raises InvalidArgumentError, whose field is such as `grammar.json_schema`, where it is refused, takes longer
        than it may, or ends the process that tries it. ResourceExhaustedError where there is no such process, or no
        processor for it.
        """
        told = pickle.dumps(grammar, pickle.HIGHEST_PROTOCOL)
        verdict = self._asked(told) or self._asked(told)
        said: dict[str, Any] = json.loads(verdict or '{"unable": true}')
        if "unable" in said:
            raise ResourceExhaustedError(
                "there is no process to be had that tries out the grammar", retry_after=_RETRY_SECONDS
            )
        if "message" in said:
            raise InvalidArgumentError(said["message"], field=said["field"])
        if "signal" in said:
            raise self._ended(f"grammar.{grammar.kind}", signal.Signals(said["signal"]))

    def close(self) -> None:
        """End the server and its trials."""
        with self._lock:
            if self._server is not None:
                self._end(self._server)

    def _ended(self, field: str, by: signal.Signals) -> SlipstreamError:
        if by is OUT_OF_PATIENCE:
            return ResourceExhaustedError(
                f"{field} was not compiled: the machine is too busy to do that in {BUSY * self.seconds:g} s",
                retry_after=_RETRY_SECONDS,
            )
        if by is OUT_OF_TIME:
            reason = f"takes longer to compile than the limit of {self.seconds:g} s"
        else:
            reason = f"cannot be compiled: that ends its process ({by.name})"
        return InvalidArgumentError(f"{field} {reason}", field=field)

    def _asked(self, told: bytes) -> bytes:
        """Return the verdict; nothing where the server has gone before it gave any."""
        ours, theirs = socket.socketpair()
        verdict = b""
        with ours:
            with theirs, self._lock:
                server = self._started()
                with contextlib.suppress(OSError):
                    socket.send_fds(server.control, [b"T"], [theirs.fileno()])
            ours.settimeout(_PATIENCE_SECONDS)
            with contextlib.suppress(OSError):
                ours.sendall(told)
                ours.shutdown(socket.SHUT_WR)
                while part := ours.recv(1 << 16):
                    verdict += part
        if not verdict:
            with self._lock:
                self._end(server)
        return verdict

    def _started(self) -> _Server:
        """Return a server that was running a moment ago. The lock is held."""
        if self._server is None:
            self._server = _Server.start(self._options)
        return self._server

    def _end(self, server: _Server) -> None:
        """End a server, if that was not done before. The lock is held."""
        if self._server is server:
            self._server = None
            server.control.close()
            server.process.kill()
            server.process.wait()


class _Server(NamedTuple):
    process: subprocess.Popen[bytes]
    control: socket.socket

    @classmethod
    def start(cls, options: TrialServerOptions) -> Self:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "verify_service.grammar.trial_server"),
                    *(str(theirs.fileno()), json.dumps(asdict(options))),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **child_environment(), "RUST_BACKTRACE": "0"},
            )
        return cls(process, ours)
