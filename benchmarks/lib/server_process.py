"""`slipstream serve` as a process of its own, for benchmarks that look at it from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.lib.repository import ROOT
from launcher.services.free_ports import free_ports
from launcher.services.process import leash_arguments

LOOPBACK = "127.0.0.1"
PORTS = ("http", "grpc", "verify", "draft")
SERVICES = {"verify_service": "verify", "draft_service": "draft", "gateway": "gateway"}
"""Each service's name in logs and figures by its module."""
LAUNCHER = "launcher"
READY = "Ctrl-C"
"""In the last lines of the greeting."""
STOP_SECONDS = 45.0
TRIES = 3
PORT_TAKEN = "Address already in use"


class ServeError(RuntimeError):
    """The launcher ended before it was ready. The message carries the end of its log."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running `slipstream serve` on free ports of loopback, whose log goes to a file."""

    process: subprocess.Popen[str]
    ports: Mapping[str, int]
    log: Path
    greeting: str

    @property
    def http(self) -> str:
        """Base URL of the HTTP API, without a trailing slash."""
        return f"http://{LOOPBACK}:{self.ports['http']}"

    @property
    def grpc(self) -> str:
        """Address of the gateway's gRPC server."""
        return f"{LOOPBACK}:{self.ports['grpc']}"

    @property
    def verify(self) -> str:
        """Address of the verify service."""
        return f"{LOOPBACK}:{self.ports['verify']}"

    @property
    def draft(self) -> str:
        """Address of the draft service's own server."""
        return f"{LOOPBACK}:{self.ports['draft']}"

    def pids(self) -> dict[str, int]:
        """The process of the launcher and of each service that runs at the moment, by name."""
        found = {LAUNCHER: self.process.pid}
        try:
            children = psutil.Process(self.process.pid).children()
        except psutil.NoSuchProcess:
            return {}
        for child in children:
            try:
                module = _module(child.cmdline())
            except psutil.Error:  # it ended meanwhile
                continue
            if module in SERVICES and child.status() != psutil.STATUS_ZOMBIE:
                found[SERVICES[module]] = child.pid
        return found

    def stop(self) -> int | None:
        """SIGTERM, which drains, and SIGKILL after a while; the exit status of a drain."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None


def _module(command: Sequence[str]) -> str:
    """The module of `python -m MODULE ...`."""
    return command[2] if len(command) > 2 and command[1] == "-m" else ""


def start_server(
    model: Path,
    draft: Sequence[str],
    log: Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    descriptors: int = 0,
) -> Server:
    """Run the launcher until it greets; ServeError if it ends first. The caller stops it.

    It drains, too, when the thread that calls this has ended, however its process died.
    `descriptors`: hard limit of open files of every process, if not 0; the soft one is lower, as systems set it.
    Where something else has taken one of the ports meanwhile, others are tried, a few times.
    """
    for _ in range(TRIES - 1):
        try:
            return _start(model, draft, log, *arguments, environment=environment, descriptors=descriptors)
        except ServeError as error:
            if PORT_TAKEN not in str(error):
                raise
    return _start(model, draft, log, *arguments, environment=environment, descriptors=descriptors)


def _start(
    model: Path,
    draft: Sequence[str],
    log: Path,
    *arguments: str,
    environment: Mapping[str, str] | None,
    descriptors: int,
) -> Server:
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    command = [sys.executable, "-I", "-S", *leash_arguments(signal.SIGTERM)]
    command += [sys.executable, "-m", "launcher", "serve", "--model", str(model)]
    command += [part for name, port in ports.items() for part in (f"--{name}-port", str(port))]
    command += [part for spec in draft for part in ("--draft", spec)]
    command += arguments
    if descriptors:
        command = ["/bin/sh", "-c", f'ulimit -Sn 200; ulimit -Hn {descriptors}; exec "$@"', "sh", *command]
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            env={**os.environ, **(environment or {})},
        )
    assert process.stdout is not None
    greeting: list[str] = []
    for line in process.stdout:
        greeting.append(line)
        if READY in line:
            return Server(process, ports, log, "".join(greeting))
    process.wait()
    process.stdout.close()
    raise ServeError(f"serve ended with {process.returncode}:\n{log.read_text()[-4000:]}")


@contextmanager
def served(
    model: Path,
    draft: Sequence[str],
    log: Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    cores: Sequence[int] = (),
    descriptors: int = 0,
) -> Iterator[Server]:
    """A server that is stopped in the end. `cores`: those that its processes may use; empty: as this process."""
    own = os.sched_getaffinity(0)
    try:
        if cores:
            os.sched_setaffinity(0, cores)  # children inherit it
        server = start_server(model, draft, log, *arguments, environment=environment, descriptors=descriptors)
    finally:
        os.sched_setaffinity(0, own)
    try:
        yield server
    finally:
        server.stop()
        assert server.process.stdout is not None
        server.process.stdout.close()


def with_test_modules() -> dict[str, str]:
    """An environment in which services and helpers find the proposers and attackers of `tests/support`."""
    paths = [str(ROOT / part) for part in ("", "kernels", "protos", "tests")]
    return {"PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])}
