"""A Ray of this machine: a head and raylets, each of which can be killed, and the cluster of replicas on them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from launcher.services.commands import join_address
from launcher.services.free_ports import free_ports
from launcher.services.process import ServiceCommand, ServiceProcess, Spawner
from launcher.services.readiness import wait_serving

LOOPBACK = "127.0.0.1"
END_SECONDS = 30.0


class Nodes:
    """Ray's processes; those killed are not started again by themselves. Within `nodes`."""

    def __init__(self, folder: Path, head_flags: Sequence[str], stack: ExitStack) -> None:
        from launcher.cluster.ray_session import start_ray

        self._start = start_ray
        self._folder = folder
        self._stack = stack
        self._count = 0
        client_port = str(free_ports(1)[0])
        own = ("--temp-dir", str(folder), "--ray-client-server-port", client_port)
        self.address = self._add("", (*head_flags, *own))

    def add(self, flags: Sequence[str]) -> None:
        """One more node."""
        self._add(self.address, flags)

    def kill_raylet(self, worker: int) -> None:
        """SIGKILL the raylet under which a worker runs."""
        raylet = psutil.Process(worker).parent()
        if raylet is None or raylet.name() != "raylet":
            raise RuntimeError(f"process {worker} is no worker of a raylet")
        raylet.send_signal(signal.SIGKILL)

    def cluster(self, *arguments: str) -> str:
        """`slipstream cluster ...`; its output. CalledProcessError where it fails."""
        command = (sys.executable, "-m", "launcher", "cluster", *arguments, "--address", self.address)
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600, check=True)
        return done.stdout

    def status(self) -> dict[str, Any]:
        """As `slipstream cluster status --json` tells."""
        found: dict[str, Any] = json.loads(self.cluster("status", "--json"))
        return found

    def _add(self, address: str, flags: Sequence[str]) -> str:
        self._count += 1
        log = self._folder / f"node{self._count}.log"
        node = self._start(log, address=address, port=free_ports(1)[0], flags=flags)
        self._stack.callback(node.process.wait, END_SECONDS)
        self._stack.callback(node.process.signal, signal.SIGTERM)
        return node.address


@contextmanager
def nodes(head_flags: Sequence[str]) -> Iterator[Nodes]:
    """A head, which ends with the block as all nodes do."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder, ExitStack() as stack:
        yield Nodes(Path(folder), head_flags, stack)


@contextmanager
def gateways(count: int, model: Path, directory: str) -> Iterator[list[str]]:
    """The gRPC addresses of gateways that follow a directory."""
    spawner = Spawner()
    started: list[ServiceProcess] = []
    for _ in range(count):
        http, grpc = map(str, free_ports(2))
        where = ("--host", LOOPBACK, "--http-port", http, "--grpc-port", grpc)
        followed = ("--model", str(model), "--directory", directory, "--no-access-log")
        command = (sys.executable, "-m", "gateway", *followed, *where)
        started.append(ServiceProcess(ServiceCommand("gateway", command, join_address(LOOPBACK, int(grpc))), spawner))
    try:
        wait_serving(started, time.monotonic() + 120)
        yield [each.command.address for each in started]
    finally:
        for each in started:
            each.stop(END_SECONDS)
