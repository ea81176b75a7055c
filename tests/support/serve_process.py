"""`slipstream serve` as a process."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from launcher.info import collect
from support.cluster import free_ports

START_SECONDS = 120


@dataclass(frozen=True)
class Served:
    """A running `slipstream serve`: URL of its HTTP API, addresses of the others."""

    process: subprocess.Popen[str]
    http: str
    grpc: str
    verify: str
    ports: dict[str, int]

    def facts(self):
        """See launcher.info."""
        return collect(self.verify, self.http.removeprefix("http://"))

    def wait_for(self, condition, seconds: float = START_SECONDS):
        """Facts for which `condition` holds."""
        deadline = time.monotonic() + seconds
        while not condition(facts := self.facts()):
            assert time.monotonic() < deadline, facts
            time.sleep(0.1)
        return facts


def start(model: Path, draft: tuple[str, ...], log: Path, *arguments: str, descriptors: int = 0) -> Served:
    """Run the launcher until it greets; its log goes to a file. `descriptors`: the limit of open files, if not 0."""
    ports = dict(zip(("http", "grpc", "verify", "draft"), free_ports(4), strict=True))
    command = [sys.executable, "-m", "launcher", "serve", "--model", str(model), "--model-name", "tiny"]
    command += [part for name, port in ports.items() for part in (f"--{name}-port", str(port))]
    command += [part for spec in draft for part in ("--draft", spec)]
    command += arguments
    if descriptors:
        command = ["/bin/sh", "-c", f'ulimit -Sn 200; ulimit -Hn {descriptors}; exec "$@"', "sh", *command]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output, text=True)
    served = Served(
        process,
        f"http://127.0.0.1:{ports['http']}",
        f"127.0.0.1:{ports['grpc']}",
        f"127.0.0.1:{ports['verify']}",
        ports,
    )
    assert process.stdout is not None
    greeting = []
    for line in process.stdout:
        greeting.append(line)
        if "Ctrl-C" in line:
            break
    else:
        process.wait()
        pytest.fail(f"serve ended with {process.returncode}:\n{log.read_text()}")
    assert any(served.http in line for line in greeting)
    return served
