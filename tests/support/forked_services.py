"""Services as forks of a process that has imported what they need: see `support.forked`.

A service started this way differs from `python -m SERVICE` in its command line alone. Tests of how services start and
end run that; others save the seconds of processor time that its imports take.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from launcher.services.process import ServiceCommand, Spawner
from slipstream.packages import child_environment
from support.forked import NEEDED, Forks, Service

_IMPORTED = {
    "verify_service": NEEDED,
    "draft_service": NEEDED,
    "gateway": ("gateway.server",),
}
"""What is imported before a service is forked."""
_READ_LATE = ("SLIPSTREAM_", "PYTEST_", "PYTHONPATH", "PYTHONUNBUFFERED")
"""Beginnings of names of environment variables that services and Python read as often as they are asked."""
_PR_SET_CHILD_SUBREAPER = 36
_ONE_AT_A_TIME = threading.Lock()


class ForkedService(subprocess.Popen[str]):
    """A running service, a child of this process."""

    def __init__(self, command: Sequence[str], process: int, output: int) -> None:
        """output: a descriptor, owned from here on, where what it prints can be read."""
        self.args = list(command)
        self.pid = process
        self.returncode: int | None = None
        self.stdin = self.stderr = None
        self.stdout = os.fdopen(output, encoding="utf-8", errors="replace")
        self._reaping = threading.Lock()

    def poll(self) -> int | None:
        """As of any other process."""
        with self._reaping:
            if self.returncode is None:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
                if ended:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """As of any other process."""
        with self._reaping:
            handle = os.pidfd_open(self.pid) if self.returncode is None else None
        if handle is not None:
            try:
                select.select([handle], [], [], timeout)
            finally:
                os.close(handle)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status

    def send_signal(self, sig: int) -> None:
        """As of any other process."""
        if self.poll() is None:
            os.kill(self.pid, sig)


class ForkingSpawner(Spawner):
    """Forks services; anything else, and a service whose environment Python or a library reads first, is executed."""

    def __init__(self, death_signal: signal.Signals = signal.SIGTERM) -> None:
        super().__init__(death_signal)
        self._signal = death_signal

    def start(self, command: ServiceCommand) -> subprocess.Popen[str]:
        """See `Spawner`."""
        environment = {**os.environ, **child_environment(), "PYTHONUNBUFFERED": "1", **command.environment}
        forked = fork_service(command.arguments, environment, self._signal)
        return super().start(command) if forked is None else forked


def fork_service(
    command: Sequence[str], environment: Mapping[str, str], death_signal: signal.Signals
) -> ForkedService | None:
    """Start `python -m SERVICE ...` in a fork; None if it takes a process of its own."""
    python, flag, module, *arguments = command
    if (python, flag) != (sys.executable, "-m") or module not in _IMPORTED or not sys.platform.startswith("linux"):
        return None
    forks, of_forks = forks_after(_IMPORTED[module])
    different = {name for name, _ in environment.items() ^ of_forks.items()}
    if not all(name.startswith(_READ_LATE) for name in different):
        return None
    reading, writing = os.pipe()
    try:
        with _adopting():
            output = f"/proc/{os.getpid()}/fd/{writing}"
            service = Service([module, *arguments], dict(environment), output, os.getpid(), death_signal)
            return ForkedService(command, forks.serve(service), reading)
    finally:
        os.close(writing)


@functools.cache
def forks_after(modules: tuple[str, ...]) -> tuple[Forks, dict[str, str]]:
    """The process that forks after these imports, started at first use, and the environment of that time."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(Forks(modules)), dict(os.environ)


@contextmanager
def _adopting() -> Iterator[None]:
    """Within, descendants whose parents end become children of this process."""
    with _ONE_AT_A_TIME:
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
        try:
            yield
        finally:
            prctl(_PR_SET_CHILD_SUBREAPER, 0)
