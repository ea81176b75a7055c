"""The process that tries out grammars: it loads the tokenizer once, then forks a child for each grammar.

    python -m verify_service.grammar.trial_server CONTROL_FD OPTIONS_AS_JSON

Over the control socket it is sent one byte with a socket for every trial wanted. The trial reads a pickled grammar from
its socket to its end, and writes a verdict: JSON with `field` and `message` of what it is refused for, empty where it
is taken, or with `signal` where that has ended the child, or with `unable` where there was none. Timers of the kernel
end a child that takes more of a processor than it may, whatever it is at, or has got none for long; so do the limit on
its memory, and a stack that is too small.

It ends when the control socket does, and its children with it. Signals of a terminal or a supervisor are the verify
service's business, and ignored here.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import selectors
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.grammar.deep_stack import STACK_BYTES, run_deep
from slipstream.grammar.grammar import Grammar
from slipstream.grammar.tokenizer import GrammarTokenizer, load_tokenizer
from slipstream.grammar.trial import try_out
from slipstream.panics import is_panic
from slipstream.process_limits import end_with, limit_memory
from slipstream.rpc.errors import InvalidArgumentError

OUT_OF_TIME, OUT_OF_PATIENCE = signal.SIGPROF, signal.SIGALRM
"""What ends a trial that has had its time of a processor, and one that has not had it for BUSY times as long."""
BUSY = 30
MEMORY_BYTES = 1 << 30
"""That a trial may take beyond its stack and the tokenizer."""


@dataclass(frozen=True, slots=True)
class TrialServerOptions:
    """What the server is started with. `seconds` of a processor is the longest that a trial may take."""

    folder: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    seconds: float


def main() -> None:
    """Load the tokenizer, then try grammars out until the verify service has gone."""
    control = socket.socket(fileno=int(sys.argv[1]))
    options = TrialServerOptions(**json.loads(sys.argv[2]))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    tokenizer = load_tokenizer(Path(options.folder), vocab_size=options.vocab_size, eos_token_ids=options.eos_token_ids)
    gc.collect()
    gc.freeze()
    _TrialServer(control, tokenizer, options.seconds).run()


class _TrialServer:
    """Forks children as told, and gives the verdict of those that cannot."""

    def __init__(self, control: socket.socket, tokenizer: GrammarTokenizer, seconds: float) -> None:
        self._control = control
        self._tokenizer = tokenizer
        self._seconds = seconds
        self._trials: dict[int, socket.socket] = {}  # by process id
        self._woken, waker = socket.socketpair()
        self._woken.setblocking(False)
        waker.setblocking(False)
        self._waker = waker
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)

    def run(self) -> None:
        """Return once the verify service has gone."""
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
        data, sockets, _, _ = socket.recv_fds(self._control, 1, 1)
        if not data:
            return False
        connection = socket.socket(fileno=sockets[0])
        server = os.getpid()
        try:
            process = os.fork()
        except OSError:  # too many processes or too little memory
            _tell(connection, {"unable": True})
            connection.close()
            return True
        if process:
            self._trials[process] = connection
            return True
        status = 1
        try:
            end_with(server)
            signal.set_wakeup_fd(-1)
            signal.signal(OUT_OF_TIME, signal.SIG_DFL)
            signal.signal(OUT_OF_PATIENCE, signal.SIG_DFL)
            for inherited in (self._control, self._woken, self._waker, *self._trials.values()):
                inherited.close()
            limit_memory(STACK_BYTES + MEMORY_BYTES)
            self._try(connection)
            status = 0
        finally:
            os._exit(status)

    def _try(self, connection: socket.socket) -> None:
        grammar = pickle.loads(_read(connection))  # noqa: S301 - written by our own verify service
        signal.setitimer(signal.ITIMER_PROF, self._seconds)
        signal.setitimer(signal.ITIMER_REAL, BUSY * self._seconds)
        verdict = run_deep(lambda: _verdict(grammar, self._tokenizer))
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _tell(connection, verdict)

    def _reap(self) -> None:
        while self._trials:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            connection = self._trials.pop(process)
            if os.WIFSIGNALED(status):
                _tell(connection, {"signal": os.WTERMSIG(status)})
            connection.close()


def _tell(connection: socket.socket, verdict: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # nobody waits for it any more
        connection.sendall(json.dumps(verdict).encode())


def _read(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def _verdict(grammar: Grammar, tokenizer: GrammarTokenizer) -> dict[str, str]:
    try:
        try_out(grammar, tokenizer)
    except InvalidArgumentError as error:
        return {"field": error.field, "message": error.message}
    except BaseException as error:
        if not (is_panic(error) or isinstance(error, MemoryError)):
            raise
        field = f"grammar.{grammar.kind}"
        words = str(error).partition("\n")[0][:200] or "it takes too much memory"
        return {"field": field, "message": f"{field} cannot be compiled: {words}"}
    return {}


if __name__ == "__main__":
    main()
