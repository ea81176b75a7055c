"""A process that outlives this one, or that somebody else started: watched and ended through its pidfd (Linux)."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from slipstream.packages import child_environment


class PidfdProcess:
    """Names a process for as long as it is held, whoever gets its number later. OSError where there is none."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return not self.wait(0.0)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Its command line; empty once it has ended."""
        try:
            text = Path(f"/proc/{self.pid}/cmdline").read_bytes()
        except OSError:
            return ()
        return tuple(part.decode("utf-8", "replace") for part in text.split(b"\0")[:-1]) if self.running else ()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; without effect once it has ended. PermissionError where that is not allowed."""
        if self.running:
            signal.pidfd_send_signal(self._descriptor, number)

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, or does within so many seconds."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(round(1000 * seconds)))

    def close(self) -> None:
        """Let go; the process goes on."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def start_to_stay(arguments: Sequence[str], log: Path, added: Mapping[str, str] = MappingProxyType({})) -> PidfdProcess:
    """Start a program, its path first, in a session of its own, with its output appended to `log`.

    `added` joins this process's environment.
    """
    appended = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    files = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), appended, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    environment = os.environ | child_environment() | {"PYTHONUNBUFFERED": "1", **added}
    pid = os.posix_spawn(arguments[0], list(arguments), environment, file_actions=files, setsid=True)
    return PidfdProcess(pid)
