"""Processes of services that were started ahead of their commands: see `slipstream.standby`."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace

from launcher.services.process import LogSink, ServiceCommand, Spawner
from launcher.services.readiness import StartupError
from slipstream.standby import FLAG, READY

_Key = tuple[tuple[str, ...], tuple[tuple[str, str], ...]]
"""What a process is started with that its arguments cannot change: program and module, and the environment."""
_PROGRAM = 3
"""Length of `PYTHON -m MODULE`, with which the command of a service begins."""


class StandbySpawner(Spawner):
    """Starts a service in the process that stands by for it, if one does; each serves once."""

    def __init__(self, death_signal: signal.Signals = signal.SIGTERM) -> None:
        super().__init__(death_signal)
        self._waiting: dict[_Key, subprocess.Popen[str]] = {}

    def prepare(self, commands: Sequence[ServiceCommand], sink: LogSink) -> None:
        """Start a process for each of these commands, whose arguments do not count yet, and wait until all stand by.

        StartupError if one ends instead.
        """
        for command in commands:
            ahead = replace(command, arguments=(*command.arguments[:_PROGRAM], FLAG))
            self._waiting[_key(command)] = self._in_thread(ahead, stdin=subprocess.PIPE)
        try:
            for command in commands:
                _await_ready(command.name, self._waiting[_key(command)], sink)
        except StartupError:
            for command in commands:
                _end(self._waiting.pop(_key(command)))
            raise

    def start(self, command: ServiceCommand) -> subprocess.Popen[str]:
        """See `Spawner`."""
        process = self._waiting.pop(_key(command), None)
        if process is not None and _hand_over(process, command.arguments[_PROGRAM:]):
            return process
        return super().start(command)


def _key(command: ServiceCommand) -> _Key:
    environment: Mapping[str, str] = command.environment
    return command.arguments[:_PROGRAM], tuple(sorted(environment.items()))


def _await_ready(name: str, process: subprocess.Popen[str], sink: LogSink) -> None:
    assert process.stdout is not None
    last = "(no output)"
    for line in process.stdout:
        last = line.rstrip("\n")
        sink(name, last)
        if last == READY:
            return
    reason = f"{name} ended before it stood by: {last}"
    raise StartupError(reason, reason)


def _hand_over(process: subprocess.Popen[str], arguments: Sequence[str]) -> bool:
    """Whether the process has got its arguments; one that has ended gets none."""
    assert process.stdin is not None
    try:
        with process.stdin as stream:
            stream.write(json.dumps(list(arguments)) + "\n")
    except OSError:
        _end(process)
        return False
    return True


def _end(process: subprocess.Popen[str]) -> None:
    with process:
        process.kill()
