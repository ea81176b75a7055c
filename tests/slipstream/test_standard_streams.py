"""Processes that were started without standard streams serve, and lend those streams' numbers to nothing else."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.services.free_ports import free_ports
from launcher.services.readiness import HealthConnection, is_serving
from slipstream import Client

SECONDS = 180


@contextmanager
def without_streams(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run without standard streams and, as in a shell's background, without SIGINT; SIGTERM ends it with status 0."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", 'trap "" INT; exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-m", *command],
    )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()


def wait(process: subprocess.Popen[bytes], condition) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline, process.returncode
        time.sleep(0.1)


def answers(address: str, timeout: float) -> bool:
    connection = HealthConnection(address)
    try:
        return connection.answers(timeout)
    finally:
        connection.close()


def streams(process: subprocess.Popen[bytes]) -> list[str]:
    return [str(Path(f"/proc/{process.pid}/fd/{number}").readlink()) for number in range(3)]


def catches(process: subprocess.Popen[bytes], number: signal.Signals) -> bool:
    """Whether a process has a handler of its own for a signal."""
    (caught,) = re.findall(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.parametrize("service", ["gateway", "verify_service", "draft_service"])
def test_each_service_alone(service: str, tiny_model: Path) -> None:
    port, other = free_ports(2)
    arguments = {
        "gateway": (
            "--model",
            str(tiny_model),
            "--verify",
            f"127.0.0.1:{other}",
            f"--grpc-port={port}",
            "--http-port=0",
        ),
        "verify_service": ("--model", str(tiny_model), "--threads=1", f"--port={port}"),
        "draft_service": ("--verify", f"127.0.0.1:{other}", f"--port={port}", "--proposers=ngram"),
    }[service]
    ready = answers if service == "gateway" else is_serving  # a gateway serves once it has a verify service
    with without_streams(service, *arguments) as process:
        wait(process, lambda: ready(f"127.0.0.1:{port}", 1.0))
        assert streams(process) == ["/dev/null"] * 3


def test_all_of_them(tiny_model: Path) -> None:
    http, grpc, verify, draft, *metrics = free_ports(6)
    ports = [f"--http-port={http}", f"--grpc-port={grpc}", f"--verify-port={verify}", f"--draft-port={draft}"]
    ports += [f"--{name}-arg=--metrics-port={port}" for name, port in zip(("verify", "draft"), metrics, strict=True)]
    command = ("launcher", "serve", "--model", str(tiny_model), "--draft", "ngram", *ports)
    with without_streams(*command) as process:
        # The launcher takes SIGINT, which it is started without, as a wish to drain once all services listen.
        wait(process, lambda: catches(process, signal.SIGINT))
        wait(process, lambda: is_serving(f"127.0.0.1:{grpc}", 1.0))
        assert streams(process) == ["/dev/null"] * 3
        with Client(f"127.0.0.1:{grpc}") as client:
            assert client.generate("a", max_tokens=3).token_ids
