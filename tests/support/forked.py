"""Command lines of services, each in a fork of one process that has imported what they need.

What the libraries of a device cost to import is paid once; in all else a command is a process of its own.
`support.forked_services` has services that run until they are ended.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from slipstream.rpc.experiments import leave_out_event_engine

TESTS = Path(__file__).parents[1]
NEEDED = (
    "draft_service.proposers.draft_model.cpu",
    "draft_service.server.server",
    "slipstream_kernels.models.gpu.ranks.rank_group",
    "verify_service.server.model_loader",
    "verify_service.server.server",
)
SECONDS = 120
"""A command that takes longer is killed."""
_PR_SET_PDEATHSIG = 1
_ADOPTION_SECONDS = 10.0


@dataclass(frozen=True)
class Ended:
    """Exit status of a command, negative for a signal, and all that it wrote."""

    status: int
    output: str


@dataclass(frozen=True)
class Service:
    """What a service is started with.

    command: the module and its arguments. environment: all of it. output: the file that gets standard output and error.
    parent: the process that adopts it, a subreaper. death_signal: what it gets when that process is gone.
    """

    command: list[str]
    environment: dict[str, str]
    output: str
    parent: int
    death_signal: int


class Forks:
    """The process that forks, once it has imported `modules`; used by the fixture `forks`."""

    def __init__(self, modules: Sequence[str] = NEEDED) -> None:
        self._modules = modules

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "support.forked", *self._modules]
        path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, module: str, *arguments: str) -> Ended:
        """What becomes of `python -m module arguments...`."""
        (ended,) = self.together([module, *arguments])
        return ended

    def together(self, *commands: Sequence[str]) -> list[Ended]:
        """What becomes of several commands that run at once. After "-c" comes a program, else a module is named."""
        return [Ended(**ended) for ended in self._ask({"commands": commands})]

    def start(self, log: Path, module: str, *arguments: str) -> int:
        """Start `python -m module arguments...`, whose output a file gets; its process id.

        It is the caller's to kill, and no zombie of the caller's afterwards.
        """
        process = self._ask({"commands": [[module, *arguments]], "log": str(log)})
        assert isinstance(process, int)
        return process

    def serve(self, service: Service) -> int:
        """Start a service; its process id. By then it is a child of `service.parent`."""
        process = self._ask({"service": asdict(service)})
        assert isinstance(process, int)
        return process

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def fork(command: list[str], output: int) -> int:
    """Start a command that writes there; its process id. The descriptor is closed here."""
    child = os.fork()
    if child == 0:
        become(command, output)
    os.close(output)
    return child


def fork_read(command: list[str]) -> tuple[int, int]:
    """Start a command; its process id and where its output can be read."""
    reading, writing = os.pipe()
    return fork(command, writing), reading


def end_of(child: int, reading: int) -> Ended:
    with os.fdopen(reading, encoding="utf-8", errors="replace") as output:
        text = output.read()
    _, status = os.waitpid(child, 0)
    return Ended(os.waitstatus_to_exitcode(status), text)


def become(command: list[str], output: int) -> None:
    """Run the command in this process, as the interpreter would, and end."""
    signal.alarm(SECONDS)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in enumerate((nothing, output, output)):
        os.dup2(source, target)
    status = 1
    try:
        sys.argv = command
        if command[0] == "-c":
            sys.argv = ["-c", *command[2:]]
            exec(command[1], {"__name__": "__main__"})
        else:
            runpy.run_module(command[0], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def fork_service(service: Service) -> int | None:
    """Start a service and leave it to its parent; its process id, and None within the service itself."""
    output = os.open(service.output, os.O_WRONLY | os.O_APPEND)
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        child = os.fork()
        if child == 0:
            os.close(reading)
            os.close(writing)
            become_service(service, output)
            return None
        os.write(writing, str(child).encode())
        os._exit(0)
    os.close(writing)
    os.close(output)
    os.waitpid(between, 0)
    with os.fdopen(reading) as answer:
        return int(answer.read())


def become_service(service: Service, output: int) -> None:
    """Take on what a process of its own would be started with."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in enumerate((nothing, output, output)):
        os.dup2(source, target)
    os.close(output)
    os.close(nothing)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    os.environ.clear()
    os.environ.update(service.environment)
    own = [path for path in sys.path if path != str(TESTS)]
    wanted = [path for path in service.environment.get("PYTHONPATH", "").split(os.pathsep) if path and path not in own]
    sys.path[:] = [*own[:1], *wanted, *own[1:]]
    importlib.invalidate_caches()
    deadline = time.monotonic() + _ADOPTION_SECONDS
    while os.getppid() != service.parent and time.monotonic() < deadline:
        time.sleep(0.0005)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, service.death_signal)
    if os.getppid() != service.parent:
        os._exit(1)


def answer_requests() -> list[str] | None:
    """Until nobody asks any more; within a fork that is to be a service: its command."""
    for line in sys.stdin:
        request = json.loads(line)
        answer: Any
        if "service" in request:
            service = Service(**request["service"])
            answer = fork_service(service)
            if answer is None:
                return service.command
        elif "log" in request:
            log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            answer = fork(request["commands"][0], log)
        else:
            running = [fork_read(command) for command in request["commands"]]
            answer = [asdict(end_of(*each)) for each in running]
        print(json.dumps(answer), flush=True)
    return None


def main() -> None:
    leave_out_event_engine()
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.freeze()  # what is there stays shared with the forks
    if command := answer_requests():
        sys.argv = command
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
