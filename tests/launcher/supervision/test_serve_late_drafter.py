"""`slipstream serve` whose draft service attaches late, or never: readiness waits for it, to a bound."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from benchmarks.lib.server_process import PORTS, with_test_modules
from launcher.services.readiness import is_serving
from support.ask import wait_until
from support.cluster import free_ports
from support.serve_process import Served


@contextmanager
def serving(model: Path, folder: Path, *arguments: str) -> Iterator[Served]:
    """The launcher, not waited for, with a draft service that attaches when there is a file `there` in the folder."""
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    command = [sys.executable, "-m", "launcher", "serve", "--model", str(model), "--model-name", "tiny"]
    command += ["--draft", f"late=support.late_proposer:create:{folder / 'there'}", *arguments]
    command += [part for name, port in ports.items() for part in (f"--{name}-port", str(port))]
    log = folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=output, text=True, env={**os.environ, **with_test_modules()}
        )
    try:
        yield Served(process, ports, log, "")
    finally:
        (folder / "there").touch()
        process.terminate()
        process.communicate(timeout=180)


def readiness(served: Served) -> tuple[int, str, list[str]]:
    try:
        answer = httpx.get(f"{served.http}/ready", timeout=60)
    except httpx.TransportError:
        return 0, "", []
    told = answer.json()
    return answer.status_code, told["status"], [each["proposer"] for each in told["missing_proposers"]]


def greeting(served: Served) -> str:
    """What the launcher prints once all is ready."""
    lines: list[str] = []
    while "Ctrl-C" not in "".join(lines):
        line = served.process.stdout.readline()
        assert line, served.log.read_text()
        lines.append(line)
    return "".join(lines)


def ask(served: Served, proposer: str) -> httpx.Response:
    body = {"model": "tiny", "prompt": "The harbour", "max_tokens": 4, "speculation": {"proposer": proposer}}
    return httpx.post(f"{served.http}/v1/completions", json=body, timeout=120)


def test_it_is_ready_when_the_drafter_is_attached_and_stays_so_without_it(tiny_model, tmp_path):
    waits = (503, "waiting for proposers to be attached", ["late"])
    with serving(tiny_model, tmp_path, "--wait-for-drafter", "3600") as served:
        wait_until(lambda: readiness(served) == waits, served.log.read_text)
        assert not is_serving(served.grpc)
        answer = ask(served, "late")
        assert (answer.status_code, answer.json()["usage"]["drafted_tokens"]) == (200, 0)
        answer = ask(served, "unheard-of")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "speculation.proposer")
        drafter = served.pids()["draft"]
        os.kill(drafter, signal.SIGKILL)
        wait_until(lambda: served.pids().get("draft", drafter) != drafter, served.log.read_text)
        assert readiness(served) == waits
        (tmp_path / "there").touch()
        assert "proposers  late (default)\n" in greeting(served)
        assert readiness(served) == (200, "ready", [])
        assert is_serving(served.grpc)

        (tmp_path / "there").unlink()
        os.kill(served.pids()["draft"], signal.SIGKILL)
        wait_until(lambda: readiness(served)[2] == ["late"], served.log.read_text)
        assert readiness(served) == (200, "ready", ["late"])
        assert is_serving(served.grpc)
    log = served.log.read_text()
    assert re.search(r"waiting up to 3[56]\d\d s for proposers to be attached: late", log)
    assert log.count("gateway: ready http=") == 1


@pytest.mark.parametrize("seconds", [pytest.param("0", marks=pytest.mark.slow), "1"])
def test_it_is_ready_without_a_drafter_that_takes_longer_and_says_so(tiny_model, tmp_path, seconds):
    with serving(tiny_model, tmp_path, "--wait-for-drafter", seconds) as served:
        shown = greeting(served)
        assert "proposers  late (default, not attached)" in shown
        assert "it attaches later, if it can" in shown
        assert readiness(served) == (200, "ready", ["late"])
        wait_until(lambda: "proposers late" in served.log.read_text(), served.log.read_text)


def test_a_signal_ends_the_wait(tiny_model, tmp_path):
    with serving(tiny_model, tmp_path) as served:
        wait_until(lambda: readiness(served)[0] == 503 and readiness(served)[2] == ["late"], served.log.read_text)
        wait_until(lambda: re.search(r"waiting up to [56]\d s", served.log.read_text()), served.log.read_text)
        served.process.send_signal(signal.SIGTERM)
        (tmp_path / "there").touch()
        assert served.process.wait(timeout=180) == 0
        assert not served.process.stdout.read()
