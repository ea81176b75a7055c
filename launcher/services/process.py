"""One service as a child process: its command, its log and its signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from slipstream.packages import child_environment
from slipstream.rpc.tls import Tls

LOG_LINES_KEPT = 2_000
"""Lines of each service's log kept for error reports."""

PARENT_DEATH_SIGNAL = Path(__file__).with_name("parent_death_signal.py")
"""The program that ends a child with the process that started it."""

LogSink = Callable[[str, str], None]
"""Called with a service's name and one line of its log, from any thread."""


def discard_log(name: str, line: str) -> None:
    """A sink for those who only read `ServiceProcess.log`."""


@dataclass(frozen=True, slots=True)
class ServiceCommand:
    """How a service is started and where it answers health checks."""

    name: str
    arguments: tuple[str, ...]
    """The whole command, program first."""
    address: str
    """host:port or unix:PATH of its gRPC server."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the launcher's own."""
    essential: bool = True
    """Whether nothing is served without it."""
    tls: Tls | None = None
    """What it takes to speak to it; None: plain text."""
    serves_later: bool = False
    """Whether it has started once it answers health checks, though it may wait for others before it says it serves."""


def leash_arguments(number: signal.Signals) -> tuple[str, ...]:
    """What Python runs before a command that is to get this signal when the calling thread has ended."""
    return str(PARENT_DEATH_SIGNAL), str(os.getpid()), str(int(number))


class Spawner:
    """Starts children from one thread that lives as long as the process, which the leash needs.

    `death_signal` is what they get when the process is gone: SIGTERM drains them, SIGKILL frees what they hold at once.
    """

    def __init__(self, death_signal: signal.Signals = signal.SIGTERM) -> None:
        self._death_signal = death_signal
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawner")

    def start(self, command: ServiceCommand) -> subprocess.Popen[str]:
        """Start the command in a process group of its own, so that a terminal's Ctrl-C reaches the launcher alone."""
        return self._in_thread(command, stdin=subprocess.DEVNULL)

    def _in_thread(self, command: ServiceCommand, *, stdin: int) -> subprocess.Popen[str]:
        return self._thread.submit(self._start, command, stdin).result()

    def _start(self, command: ServiceCommand, stdin: int) -> subprocess.Popen[str]:
        leash = (sys.executable, "-I", "-S", *leash_arguments(self._death_signal))
        return subprocess.Popen(
            (*leash, *command.arguments),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, **child_environment(), "PYTHONUNBUFFERED": "1", **command.environment},
            start_new_session=True,
        )


class ServiceProcess:
    """A running service. Its output is kept (newest lines) and handed to the sink line by line."""

    def __init__(self, command: ServiceCommand, spawner: Spawner, sink: LogSink = discard_log) -> None:
        self.command = command
        # A spawner nobody holds ends its thread, and with that the leash's owner.
        self._spawner = spawner
        self._lines: deque[str] = deque(maxlen=LOG_LINES_KEPT)
        self._sink = sink
        self.popen = self._spawner.start(command)
        self._reader = threading.Thread(target=self._read, name=f"log-{command.name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process id of the service itself: the leash became it."""
        return self.popen.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self.popen.poll() is None

    def log(self, last: int = LOG_LINES_KEPT) -> str:
        """The newest lines of its output."""
        return "\n".join(list(self._lines)[-last:])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; without effect once it has ended."""
        if self.running:
            self.popen.send_signal(number)

    def wait(self, timeout: float | None = None) -> int | None:
        """Exit status, negative for a signal; None if it still runs after `timeout` seconds."""
        try:
            status = self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        self._reader.join(timeout=1.0)
        return status

    def stop(self, grace: float) -> None:
        """SIGTERM, then SIGKILL after `grace` seconds."""
        self.signal(signal.SIGTERM)
        if self.wait(grace) is None:
            self.kill()

    def kill(self) -> None:
        """SIGKILL and reap."""
        self.signal(signal.SIGKILL)
        self.wait()

    def describe_end(self) -> str:
        """How it ended, for people."""
        status = self.popen.poll()
        if status is None:
            return "still runs"
        return f"was ended by {_signal_name(-status)}" if status < 0 else f"exited with status {status}"

    def _read(self) -> None:
        assert self.popen.stdout is not None
        with self.popen.stdout as output:
            for line in output:
                text = line.rstrip("\n")
                self._lines.append(text)
                self._sink(self.command.name, text)


def _signal_name(number: int) -> str:
    """Real-time signals have numbers alone."""
    names = {known.value: known.name for known in signal.Signals}
    return names.get(number, f"signal {number}")
