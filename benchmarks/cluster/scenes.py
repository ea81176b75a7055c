"""What is done to a cluster under streams, and how long it takes to be whole again."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from benchmarks.cluster.gateways import Gateways
from benchmarks.cluster.nodes import Nodes
from benchmarks.cluster.traffic import Traffic
from benchmarks.lib.runner import verify_state
from slipstream.directory.client import RemoteDirectory
from slipstream.directory.member import Member

BACK_SECONDS = 120.0
LULL_STREAMS = 4
Facts = dict[str, Any]


class Members:
    """The directory's list of the moment, and when it changed, by time.perf_counter()."""

    def __init__(self, directory: str) -> None:
        self._directory = RemoteDirectory(directory)
        self.lists: list[tuple[float, tuple[Member, ...]]] = []

    async def follow(self) -> None:
        """Until cancelled."""
        async for members in self._directory.watch():
            self.lists.append((time.perf_counter(), members))

    def serving(self) -> set[str]:
        """Addresses that take new requests."""
        return {each.address for each in self.lists[-1][1] if not each.draining} if self.lists else set()

    async def back(self, count: int, without: str) -> float:
        """When so many serve, the lost one not among them; infinite where that takes too long."""
        limit = time.perf_counter() + BACK_SECONDS
        while time.perf_counter() < limit:
            if len(self.serving() - {without}) >= count and without not in self.serving():
                return self.lists[-1][0]
            await asyncio.sleep(0.05)
        return float("inf")

    async def next_list(self, known: int) -> float:
        """When a list came beyond so many known ones; infinite where that takes too long."""
        limit = time.perf_counter() + BACK_SECONDS
        while time.perf_counter() < limit:
            if len(self.lists) > known:
                return self.lists[known][0]
            await asyncio.sleep(0.02)
        return float("inf")

    async def told(self, address: str) -> float:
        """When a member was first said to drain."""
        async for members in self._directory.watch():
            if any(each.draining and each.address == address for each in members):
                return time.perf_counter()
        return float("inf")


@dataclass(frozen=True, slots=True)
class Setting:
    """What a scene is played with. `kills`: when the scene `kill` has killed, by time.perf_counter()."""

    options: argparse.Namespace
    ray: Nodes
    traffic: Traffic
    members: Members
    gateways: Gateways
    kills: list[float] = field(default_factory=list)


async def kill(at: Setting) -> Facts:
    """Kills, one after the other, and how long capacity was away."""
    began, back, placed = time.perf_counter(), list[float](), list[list[list[str]]]()
    while time.perf_counter() < began + at.options.seconds:
        next_at = time.perf_counter() + at.options.every
        head_first = sorted((await asyncio.to_thread(at.ray.status))["replicas"], key=lambda each: each["number"])
        victim = next(each for each in head_first if each["state"] == "ready")
        placed.append([each["gpus"] for each in head_first if each["state"] == "ready"])
        killed = time.perf_counter()
        at.kills.append(killed)
        if at.options.kill == "actor":
            os.kill(victim["process_id"], signal.SIGKILL)
        else:
            at.ray.kill_raylet(victim["process_id"])
        back.append(await at.members.back(at.options.replicas, victim["address"]) - killed)
        print(f"killed {victim['address']}: all {at.options.replicas} serve after {back[-1]:.1f} s", flush=True)
        if at.options.kill == "raylet":
            await asyncio.to_thread(at.ray.add, ("--num-cpus=2", "--num-gpus=0"))
        await asyncio.sleep(max(0.0, next_at - time.perf_counter()))
    return {
        "killed": at.options.kill,
        "kills": len(back),
        "seconds_until_capacity_is_back": [round(each, 2) for each in back],
        "gpus_of_replicas_before_each_kill": placed,
    }


async def drain(at: Setting) -> Facts:
    """One replica drains; the time from the directory's word to the last of its requests."""
    found = (await asyncio.to_thread(at.ray.status))["replicas"]
    victim = next(each for each in found if each["state"] == "ready")
    draining = asyncio.create_task(asyncio.to_thread(at.ray.cluster, "drain", str(victim["number"])))
    told, before = await at.members.told(victim["address"]), 0
    with suppress(Exception):  # it may have ended before it is asked
        state = await asyncio.to_thread(verify_state, victim["address"])
        before = state.running + state.queued
        while state.running + state.queued:
            state = await asyncio.to_thread(verify_state, victim["address"])
    empty = time.perf_counter() - told
    await draining
    return {"requests_when_told": before, "seconds_until_empty": round(empty, 2)}


async def scale(at: Setting) -> Facts:
    """Few streams, all, few again; how many replicas served when."""
    began, steps = time.perf_counter(), []
    for streams in (LULL_STREAMS, at.options.streams, LULL_STREAMS):
        at.traffic.streams = streams
        steps.append((round(time.perf_counter() - began, 1), streams))
        await asyncio.sleep(at.options.seconds / 3)
    counts = [(0.0, len(at.members.lists[0][1]))] + [
        (round(at - began, 1), sum(not each.draining for each in listed))
        for at, listed in at.members.lists
        if at > began
    ]
    steps.append((round(time.perf_counter() - began, 1), LULL_STREAMS))
    counts.append((steps[-1][0], counts[-1][1]))
    return {
        "streams_at_seconds": steps,
        "replicas_at_seconds": counts,
        "most": max((count for _, count in counts), default=1),
    }
