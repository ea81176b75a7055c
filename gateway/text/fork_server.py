"""The fork server of the text workers: loads tokenizer and template once, then forks a worker whenever it is told to.

    python -m gateway.text.fork_server CONTROL_FD OPTIONS_AS_JSON

So a worker that was killed is replaced within milliseconds, and all of them share the tokenizer's memory. Over the
control socket it says what it is about to read ("reading FILE"), then "ready" or "refused REASON", a line each. From
then on it is sent one byte with a socket for every worker wanted, and the number of the worker to be killed.

Neither it nor its workers outlive the gateway: it ends when the control socket does, and Linux kills each of them with
its parent. Signals of a terminal or a supervisor are the gateway's business, and ignored here.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import selectors
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from gateway.text import worker
from gateway.text.answer_form import log_names
from gateway.text.jobs import Jobs
from slipstream.grammar.deep_stack import STACK_BYTES
from slipstream.process_limits import end_with, limit_memory
from slipstream.rpc.errors import SlipstreamError
from slipstream.rpc.logs import LogFormat, set_up_logging

COMMAND: Final = struct.Struct("<cI")
"""FORK, with a socket beside it and the worker's number; or KILL and the number."""
FORK: Final = b"F"
KILL: Final = b"K"


@dataclass(frozen=True, slots=True)
class ForkServerOptions:
    """What the fork server is started with."""

    parent: int
    model: str
    chat_template: str
    """A file; empty: the model's own."""
    max_bytes: int
    max_choices: int
    worker_memory_bytes: int
    loading_memory_bytes: int
    log_level: str
    log_format: LogFormat
    tool_call_parser: str
    reasoning_parser: str


def main() -> None:
    """Load, then fork workers until the gateway has gone."""
    control = socket.socket(fileno=int(sys.argv[1]))
    options = ForkServerOptions(**json.loads(sys.argv[2]))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end_with(options.parent)
    set_up_logging("gateway", options.log_level, options.log_format)
    jobs = _load(control, options)
    gc.collect()
    gc.freeze()
    control.sendall(b"ready\n")
    _ForkServer(control, jobs, options.worker_memory_bytes).run()


def _load(control: socket.socket, options: ForkServerOptions) -> Jobs:
    limits = resource.getrlimit(resource.RLIMIT_AS)
    limit_memory(options.loading_memory_bytes)
    try:
        jobs = Jobs.load(
            Path(options.model),
            Path(options.chat_template) if options.chat_template else None,
            max_bytes=options.max_bytes,
            max_choices=options.max_choices,
            stages=lambda file: control.sendall(f"reading {file}\n".encode()),
            tool_call_parser=options.tool_call_parser,
            reasoning_parser=options.reasoning_parser,
        )
    except SlipstreamError as error:
        _refuse(control, error.message)
    except MemoryError:
        _refuse(control, "")
    resource.setrlimit(resource.RLIMIT_AS, limits)
    log_names(jobs.parsers)
    return jobs


def _refuse(control: socket.socket, reason: str) -> NoReturn:
    control.sendall(f"refused {' '.join(reason.split())}\n".encode())
    sys.exit(1)


def _on_deep_stack(work: Callable[[], None]) -> None:
    """Do `work` where nothing that recurses as deep as a client's text says can end the process.

    It is over without a word where the gateway at the other end is gone.
    """

    def quietly() -> None:
        with contextlib.suppress(OSError):
            work()

    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=quietly, name="text worker")
    thread.start()
    thread.join()


class _ForkServer:
    """Forks and kills workers as told, and reaps those that have ended."""

    def __init__(self, control: socket.socket, jobs: Jobs, memory_bytes: int) -> None:
        self._control = control
        self._jobs = jobs
        self._memory_bytes = memory_bytes
        self._workers: dict[int, int] = {}  # process ids by the numbers that the gateway gave
        self._woken, waker = socket.socketpair()
        self._woken.setblocking(False)
        waker.setblocking(False)
        self._waker = waker
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)

    def run(self) -> None:
        """Return once the gateway has gone."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._woken:
                        self._woken.recv(4096)
                    elif not self._obey():
                        return
                self._reap()

    def _obey(self) -> bool:
        data, sockets, _, _ = socket.recv_fds(self._control, COMMAND.size, 1)
        if len(data) < COMMAND.size:
            return False
        command, number = COMMAND.unpack(data)
        self._reap()
        if command == FORK:
            self._fork(number, socket.socket(fileno=sockets[0]))
        elif number in self._workers:
            os.kill(self._workers[number], signal.SIGKILL)
        return True

    def _fork(self, number: int, connection: socket.socket) -> None:
        server = os.getpid()
        try:
            process = os.fork()
        except OSError:  # too many processes or too little memory: the gateway tries again
            connection.close()
            return
        if process:
            self._workers[number] = process
            connection.close()
            return
        try:
            end_with(server)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for inherited in (self._control, self._woken, self._waker):
                inherited.close()
            _on_deep_stack(partial(worker.serve, connection, self._jobs, self._memory_bytes))
        finally:
            os._exit(0)

    def _reap(self) -> None:
        while self._workers:
            process, _ = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            self._workers = {number: known for number, known in self._workers.items() if known != process}


if __name__ == "__main__":
    main()
