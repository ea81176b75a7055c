"""Thousands of connections that say nothing, or little, beside streams, requests and health checks.

    python -m benchmarks.idle_connections --sockets 20000 --seconds 40

`slipstream serve` runs the demo model. The same requests are answered before and while a crowd holds its connections
open: three quarters at the HTTP port (silent ones, heads and bodies that come byte by byte), the rest at the gRPC port.
What the server closes comes again. Streams that were open when the crowd came, and those begun meanwhile, must have
the tokens of before; other requests must be answered, or refused with 503; no process may be killed. Exit status 1
otherwise. --descriptors lowers the services' limit of open files.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.idle_connections.socket_crowd import Crowd, Group, gathered
from benchmarks.lib.report import write_json
from benchmarks.lib.repository import DEMO_MODEL
from benchmarks.lib.server_process import served

HTTP_KINDS = ("silent", "head", "body")
GRPC_KINDS = ("silent", "http2")
MODEL = "slipstream-demo"
ARGUMENTS = ("--drain-seconds", "2")
STREAMS = 4
TOKENS = 200
PAUSE_SECONDS = 0.2
"""Between two requests of the client that asks and the one that looks at the health."""


@dataclass(slots=True)
class Findings:
    """What was seen."""

    before: list[str] = field(default_factory=list)
    across: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    health: Counter[str] = field(default_factory=Counter)
    health_seconds: list[float] = field(default_factory=list)
    most_open: int = 0
    opened: int = 0
    killed: int = 0

    @property
    def passed(self) -> bool:
        """Whether streams went on untouched, requests were answered or refused, and nothing was killed."""
        kinds = {*self.outcomes, *self.health}
        return self.across == self.before and kinds <= {"200", "503"} and not self.killed and self.health["200"] > 0

    def summary(self) -> dict[str, Any]:
        """Without texts and single times."""
        waits = sorted(self.health_seconds)
        return {
            "outcomes": dict(self.outcomes),
            "health": dict(self.health),
            "most_open": self.most_open,
            "opened": self.opened,
            "killed": self.killed,
            "streams_equal": sum(map(str.__eq__, self.across, self.before)),
            "health_seconds": {"median": waits[len(waits) // 2], "longest": waits[-1]},
        }


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.idle_connections",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sockets", type=int, default=20_000, help="connections of the crowd")
    parser.add_argument("--seconds", type=float, default=40.0, help="how long the crowd stays (at most 300)")
    parser.add_argument("--descriptors", type=int, default=0, help="the services' limit of open files; 0: the system's")
    parser.add_argument("--json", type=Path, help="where to write the findings")
    options = parser.parse_args(argv)
    seconds = min(options.seconds, 300.0)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with served(DEMO_MODEL, (), log, *ARGUMENTS, descriptors=options.descriptors) as server:
            findings = measure(server.http.removeprefix("http://"), server.grpc, options.sockets, seconds)
        events = [line for line in log.read_text().splitlines() if " is killed" in line]
        findings.killed = len(events)
    summary = findings.summary()
    waits = summary["health_seconds"]
    print(f"connections open at most {findings.most_open}, opened {findings.opened}")
    print(f"streams with the tokens of before {summary['streams_equal']} of {STREAMS}")
    print(f"requests {summary['outcomes']}, health {summary['health']}")
    print(f"health answered after {waits['median']:.3f} s (median), {waits['longest']:.3f} s (longest)")
    print(f"services killed {findings.killed}", *events, sep="\n    ")
    if options.json is not None:
        write_json(options.json, findings.summary())
    return 0 if findings.passed else 1


def measure(http: str, grpc: str, sockets: int, seconds: float) -> Findings:
    """Streams, requests and health checks beside a crowd of so many connections for so long."""
    findings = Findings()
    findings.before = [_stream(http, index, TOKENS) for index in range(STREAMS)]
    print(f"texts of {[len(text) for text in findings.before]} characters")
    first = threading.Barrier(STREAMS + 1)
    across: dict[int, str] = {}

    def follow(index: int) -> None:
        across[index] = _stream(http, index, TOKENS, first, seconds / 2)

    followers = [threading.Thread(target=follow, args=(index,)) for index in range(STREAMS)]
    for follower in followers:
        follower.start()
    first.wait(60.0)
    groups = [Group(http, sockets * 3 // 4, HTTP_KINDS), Group(grpc, sockets - sockets * 3 // 4, GRPC_KINDS)]
    with gathered(groups, seconds + 60.0) as crowd:
        _look(findings, crowd, http, seconds)
    for follower in followers:
        follower.join(120.0)
    findings.across = [across.get(index, "") for index in range(STREAMS)]
    return findings


def _look(findings: Findings, crowd: Crowd, http: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        began = time.monotonic()
        findings.health[_outcome("GET", http, "/health")] += 1
        findings.health_seconds.append(time.monotonic() - began)
        findings.outcomes[_outcome("POST", http, "/v1/completions")] += 1
        state = crowd.state()
        findings.most_open, findings.opened = max(findings.most_open, state.open), state.opened
        time.sleep(PAUSE_SECONDS)


def _outcome(method: str, http: str, path: str) -> str:
    """Status of one request on a connection of its own, or the name of what went wrong."""
    body = {"model": MODEL, "prompt": [11, 12, 13], "max_tokens": 2, "seed": 1} if method == "POST" else None
    try:
        return str(httpx.request(method, f"http://{http}{path}", json=body, timeout=30.0).status_code)
    except httpx.HTTPError as error:
        return type(error).__name__


def _stream(http: str, index: int, tokens: int, first: threading.Barrier | None = None, pause: float = 0.0) -> str:
    """The text of a streamed answer; waits at `first` once it has begun, and then reads no more for `pause` seconds."""
    body = {
        "model": MODEL,
        "prompt": [20 + index, 30, 40],
        "max_tokens": tokens,
        "ignore_eos": True,
        "seed": index,
        "stream": True,
    }
    parts = []
    try:
        with httpx.stream("POST", f"http://{http}/v1/completions", json=body, timeout=120.0) as answer:
            if answer.status_code != 200:
                return answer.read().decode()
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    parts.append(json.loads(line.removeprefix("data: "))["choices"][0]["text"])
                if first is not None and len(parts) == 1:
                    first.wait(60.0)
                    first = None
                    time.sleep(pause)
    except (httpx.HTTPError, threading.BrokenBarrierError) as error:
        parts.append(repr(error))
    return "".join(parts)


if __name__ == "__main__":
    sys.exit(main())
