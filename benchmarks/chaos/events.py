"""What is done to a server while requests run: services killed and stopped, drafters that attack, drafters swapped."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import grpc

from benchmarks.lib.drafter_commands import guessing_command, hostile_command
from benchmarks.lib.repository import ROOT
from benchmarks.lib.server_process import Server
from launcher.rollout.traffic_shift import SwapError, swap
from launcher.services.process import ServiceProcess, Spawner
from launcher.services.readiness import attached_proposers, is_serving
from slipstream.rpc.channel import open_sync_channel
from slipstream.rpc.errors import SlipstreamError
from slipstream.v1 import verify_pb2, verify_pb2_grpc

KINDS = ("verify", "draft", "gateway", "stop", "hostile", "swap")
DEFAULT_EVENTS = ("verify", "draft", "stop", "hostile", "swap")
DEFAULT_SECONDS = {"verify": 45.0, "draft": 20.0, "gateway": 120.0, "stop": 25.0, "hostile": 30.0, "swap": 60.0}
"""Between two events of a kind, on average."""
SPREAD = (0.75, 1.25)
"""Of that, at least and at most."""
ATTACKS = ("garbage", "stale", "flood", "twice", "silent", "wrong")
ATTACK_SECONDS, ATTACK_LIMIT = 3.0, 30.0
"""How long an attack lasts, and its process with start and end at most."""
START_SECONDS = 60.0
"""How long a service that is started again is waited for before it is killed or stopped."""
SERVING_SECONDS = 4.0
"""How long it then serves at most."""
ATTACH_SECONDS, SWAP_SECONDS = 20.0, 10.0
SHORTEST_STOP = 0.2
GATEWAY_STOP = 3.0
"""A gateway is stopped no longer: nothing takes its place, and its clients would only wait."""
POLL_SECONDS = 0.1


@dataclass(slots=True)
class Event:
    """Something done to `target`, from `begin` to `end` in time.perf_counter(); `what` came of it in a word."""

    kind: str
    target: str
    begin: float
    end: float = 0.0
    what: str = ""


@dataclass(slots=True)
class Storm:
    """Events of several kinds, each on a clock of its own, drawn from a seed.

    `every` names the kinds and the mean seconds between two of each; `hang_seconds` is after which the launcher kills
    what does not answer, and what stops are shorter or longer than.
    """

    server: Server
    every: Mapping[str, float]
    seed: int
    hang_seconds: float
    environment: Mapping[str, str]
    proposer: str
    """whose requests drafters take over"""
    events: list[Event] = field(default_factory=list)

    async def run(self, seconds: float) -> None:
        """Let it blow for so long. In the end nothing is stopped, and no process of the storm is left."""
        over = time.perf_counter() + seconds
        async with asyncio.TaskGroup() as group:
            for kind, mean in self.every.items():
                group.create_task(self._repeat(self._acts()[kind], mean, Random(f"{self.seed} {kind}"), over))

    def _acts(self) -> dict[str, Callable[[Random], Awaitable[Event]]]:
        kills = {name: lambda draw, name=name: self._kill(name, draw) for name in ("verify", "draft", "gateway")}
        return {**kills, "stop": self._stop, "hostile": self._attack, "swap": self._swap}

    async def _repeat(self, act: Callable[[Random], Awaitable[Event]], mean: float, draw: Random, over: float) -> None:
        at = time.perf_counter()
        while True:
            at += mean * draw.uniform(*SPREAD)
            if at >= over:
                return
            await asyncio.sleep(at - time.perf_counter())
            event = await act(draw)
            event.end = time.perf_counter()
            at = max(at, event.begin)

    def _note(self, kind: str, target: str) -> Event:
        event = Event(kind, target, time.perf_counter())
        self.events.append(event)
        return event

    async def _running(self, name: str, draw: Random) -> int | None:
        """The process of a service; one that is being started is waited for until it serves, and a little longer."""
        waited = False
        for _ in range(int(START_SECONDS / POLL_SECONDS)):
            pid = self.server.pids().get(name)
            if pid and await asyncio.to_thread(is_serving, self._address(name)):
                await asyncio.sleep(SERVING_SECONDS * draw.random() if waited else 0.0)
                return pid
            waited = True
            await asyncio.sleep(POLL_SECONDS)
        return self.server.pids().get(name)

    def _address(self, name: str) -> str:
        server = self.server
        return {"verify": server.verify, "draft": server.draft, "gateway": server.grpc}[name]

    async def _kill(self, name: str, draw: Random) -> Event:
        pid = await self._running(name, draw)
        event = self._note("kill", name)
        event.what = "killed" if pid and _signal(pid, signal.SIGKILL) else "was not there"
        return event

    async def _stop(self, draw: Random) -> Event:
        targets = ["verify", "verify", "draft", "gateway"]
        name = draw.choice(targets)
        longest = GATEWAY_STOP if name == "gateway" else 1.5 * self.hang_seconds
        seconds = math.exp(draw.uniform(math.log(SHORTEST_STOP), math.log(longest)))
        pid = await self._running(name, draw)
        event = self._note("stop", name)
        if not (pid and _signal(pid, signal.SIGSTOP)):
            event.what = "was not there"
            return event
        try:
            await asyncio.sleep(seconds)
        finally:
            went_on = _signal(pid, signal.SIGCONT)
        event.what = f"stopped for {seconds:.1f} s" + ("" if went_on else ", killed meanwhile")
        return event

    async def _attack(self, draw: Random) -> Event:
        kind, transport = draw.choice(ATTACKS), draw.choice(("shm", "grpc"))
        event = self._note("hostile", kind)
        process = await asyncio.create_subprocess_exec(
            *hostile_command(self.server.verify, kind, self.proposer, transport, ATTACK_SECONDS),
            cwd=ROOT,
            env={**os.environ, **self.environment},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            said, failed = await asyncio.wait_for(process.communicate(), ATTACK_LIMIT)
        except TimeoutError:
            event.what = "could not attack in time"
        else:
            text = (failed if process.returncode else said).decode(errors="replace").strip()
            event.what = " ".join(text.split())[-200:] if process.returncode else text.rpartition("\n")[2]
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return event

    async def _swap(self, draw: Random) -> Event:
        event = self._note("swap", self.proposer)
        event.what = await asyncio.to_thread(self._swap_there_and_back, draw.uniform(1.0, 4.0))
        return event

    def _swap_there_and_back(self, seconds: float) -> str:
        """Requests go to a drafter that guesses at random for so long, and back. What came of it."""
        command = guessing_command(self.server.verify, self.proposer, self.environment)
        process = ServiceProcess(command, Spawner())
        try:
            limit = time.monotonic() + ATTACH_SECONDS
            while not _attached(self.server.verify, process.pid):
                if time.monotonic() > limit or not process.running:
                    return "never attached"
                time.sleep(POLL_SECONDS)
            for share in (1.0, 0.0):
                swap(command.address, self.server.verify, share=share, seconds=SWAP_SECONDS)
                time.sleep(seconds if share else 0.0)
            return "there and back"
        except (SwapError, SlipstreamError, grpc.RpcError) as error:
            return f"not whole: {str(error)[:100]}"
        finally:
            process.stop(SWAP_SECONDS)


def _signal(pid: int, number: signal.Signals) -> bool:
    """Whether there was such a process to send it to."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def _attached(verify: str, pid: int) -> bool:
    with open_sync_channel(verify) as channel, suppress(grpc.RpcError):
        state = verify_pb2_grpc.VerifyServiceStub(channel).GetState(verify_pb2.GetStateRequest(), timeout=2.0)
        return any(drafter.process_id == pid for drafter in state.drafters)
    return False


async def await_all(server: Server, proposers: Iterable[str], seconds: float) -> bool:
    """Return once all services run and all proposers are attached; whether that was in time."""
    wanted, limit = set(proposers), time.monotonic() + seconds
    while time.monotonic() < limit:
        if {"verify", "draft", "gateway"} <= set(server.pids()) and wanted <= await asyncio.to_thread(
            attached_proposers, server.verify
        ):
            return True
        await asyncio.sleep(POLL_SECONDS)
    return False
