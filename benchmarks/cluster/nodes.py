"""A Ray of this machine: a head and raylets, each of which can be killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from launcher.services.free_ports import free_ports

if TYPE_CHECKING:
    from launcher.cluster.ray_session import RayNode

END_SECONDS = 30.0
TRIES = 4
"""Of a node's start: Ray gives it up after 30 s, which on a busy machine is soon."""


class Nodes:
    """Ray's processes; those killed are not started again by themselves. Within `nodes`."""

    def __init__(self, folder: Path, head_flags: Sequence[str], stack: ExitStack) -> None:
        from launcher.cluster.ray_session import RayError, start_ray

        self._start, self._error = start_ray, RayError
        self._folder = folder
        self._stack = stack
        self._started: list[RayNode] = []
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

    def kill_actor(self, name: str) -> None:
        """SIGKILL the process of the one actor of a class."""
        named = [
            each for each in psutil.process_iter(["cmdline"]) if (each.info["cmdline"] or [])[:1] == [f"ray::{name}"]
        ]
        (process,) = filter(self._is_ours, named)
        process.kill()

    def kill_head(self) -> None:
        """SIGKILL all of the head's processes but its workers, which notice."""
        for process in psutil.Process(self._started[0].process.pid).children(recursive=True):
            if not "".join(process.cmdline()[:1]).startswith("ray::"):
                process.kill()

    def _is_ours(self, process: psutil.Process) -> bool:
        raylets = {each.process.pid for each in self._started}
        return any(each.pid in raylets for each in process.parents())

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
        log = self._folder / f"node{len(self._started)}.log"
        for left in reversed(range(TRIES)):
            try:
                node = self._start(log, address=address, port=free_ports(1)[0], flags=flags)
                break
            except self._error:
                if not left:
                    raise
        self._started.append(node)
        self._stack.callback(node.process.wait, END_SECONDS)
        self._stack.callback(node.process.signal, signal.SIGTERM)
        return node.address


@contextmanager
def nodes(head_flags: Sequence[str]) -> Iterator[Nodes]:
    """A head, which ends with the block as all nodes do."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder, ExitStack() as stack:
        yield Nodes(Path(folder), head_flags, stack)
