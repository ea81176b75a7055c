"""A server while a storm blows over it: when it can serve, what its processes hold, and what is left behind."""

from __future__ import annotations

import asyncio
import bisect
import math
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import grpc
import httpx

from benchmarks.lib.process_samples import ProcessSample, sample_processes
from benchmarks.lib.server_process import Server
from launcher.cli.info import collect
from slipstream.rpc.channel import open_channel
from slipstream.v1 import verify_pb2, verify_pb2_grpc

LOOK_SECONDS = 0.25
"""Between two looks at whether services answer, and how long an answer may take."""
SAMPLE_SECONDS = 5.0
_ENDED = re.compile(r"^(verify|draft|gateway) *\| (.+); (?:starts again in|given up after)", re.MULTILINE)
_BETWEEN = ("During handling", "The above exception")
"""How lines begin that stand between two tracebacks of one error."""
_GAUGE = re.compile(r"^slipstream_gateway_(running|paused)_choices (\S+)$", re.MULTILINE)


@dataclass(slots=True)
class Looks:
    """Whether a service answered, look by look. `at` are times in time.perf_counter(), in order."""

    at: list[float] = field(default_factory=list)
    up: list[bool] = field(default_factory=list)

    def add(self, *, up: bool) -> None:
        self.at.append(time.perf_counter())
        self.up.append(up)

    def up_seconds(self, begin: float, end: float) -> float:
        """Time between looks from `begin` to `end` that both were answered."""
        looks = [look for look in zip(self.at, self.up, strict=True) if begin <= look[0] <= end]
        return sum(later - earlier for (earlier, before), (later, after) in pairwise(looks) if before and after)

    def falls(self) -> list[float]:
        """When a look was not answered after one that was."""
        looks = zip(self.at, self.up, strict=True)
        return [at for (_, before), (at, after) in pairwise(looks) if before and not after]

    def next_up(self, after: float) -> float:
        """When the first look after some time was answered; infinite if none was."""
        first = bisect.bisect_right(self.at, after)
        return next((at for at, up in zip(self.at[first:], self.up[first:], strict=True) if up), math.inf)


@dataclass(slots=True)
class Watch:
    """Looks at verify and gateway, and samples of all processes, for as long as it runs."""

    server: Server
    verify: Looks = field(default_factory=Looks)
    gateway: Looks = field(default_factory=Looks)
    samples: list[dict[str, ProcessSample]] = field(default_factory=list)

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_at_verify())
            group.create_task(self._look_at_gateway())
            group.create_task(self._sample())

    async def _look_at_verify(self) -> None:
        async with open_channel(self.server.verify) as channel:
            stub = verify_pb2_grpc.VerifyServiceStub(channel)
            while True:
                try:
                    await stub.GetState(verify_pb2.GetStateRequest(), timeout=LOOK_SECONDS * 2)
                    self.verify.add(up=True)
                except grpc.RpcError:
                    self.verify.add(up=False)
                await asyncio.sleep(LOOK_SECONDS)

    async def _look_at_gateway(self) -> None:
        async with httpx.AsyncClient(base_url=self.server.http, trust_env=False, timeout=LOOK_SECONDS * 8) as web:
            while True:
                try:
                    self.gateway.add(up=(await web.get("/health")).status_code == 200)
                except httpx.HTTPError:
                    self.gateway.add(up=False)
                await asyncio.sleep(LOOK_SECONDS)

    async def _sample(self) -> None:
        while True:
            self.samples.append(await asyncio.to_thread(lambda: sample_processes(self.server.pids())))
            await asyncio.sleep(SAMPLE_SECONDS)


async def left_behind(server: Server, seconds: float) -> dict[str, int]:
    """What is held for requests that are over: of each kind the number, once it is 0 or the time is up."""
    limit = time.monotonic() + seconds
    while True:
        try:
            found = await asyncio.to_thread(_held, server)
        except (httpx.HTTPError, KeyError) as error:
            found = {f"no answer: {error!r}": 1}
        if not any(found.values()) or time.monotonic() > limit:
            return found
        await asyncio.sleep(LOOK_SECONDS)


def _held(server: Server) -> dict[str, int]:
    facts = collect(server.verify, server.http.removeprefix("http://"))
    state: dict[str, Any] = facts.verify.state
    metrics = httpx.get(f"{server.http}/metrics", trust_env=False, timeout=10.0).text
    return {
        "requests running": state["running"],
        "requests queued": state["queued"],
        "KV pages": state["pages_total"] - state["pages_free"] - state["pages_cached"],
        "sessions of drafters": sum(draft.sessions for draft in facts.drafts),
        **{f"choices {name} in the gateway": int(float(value)) for name, value in _GAUGE.findall(metrics)},
    }


def ends_of_services(log: str) -> list[tuple[str, str]]:
    """Which service ended and how, of each time that the launcher had to start one again."""
    return [(name, how) for name, how in _ENDED.findall(log)]


def tracebacks(log: str) -> dict[str, int]:
    """How many services have written, by service and last line."""
    found: Counter[str] = Counter()
    open_in: set[str] = set()
    for line in log.splitlines():
        service, _, text = line.partition("| ")
        if text.startswith("Traceback (most recent call last)"):
            open_in.add(service)
        elif service in open_in and text[:1].strip() and not text.startswith(_BETWEEN):
            open_in.discard(service)
            found[f"{service.strip()}: {text[:120]}"] += 1
    return dict(found)


def lived_through(samples: Sequence[dict[str, ProcessSample]], name: str) -> bool:
    """Whether a service had one process in all of the samples."""
    return len({sample[name].pid for sample in samples if name in sample}) == 1
