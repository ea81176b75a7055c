"""A cluster of replicas on a Ray of this machine: what kills, drains and steps of load cost streams.

    python -m benchmarks.cluster --output benchmarks/results/cluster.json
    python -m benchmarks.cluster --scenes kill --gpus 2 --model DIR --output gpus.json      # one GPU a replica

Starts a head and raylets (`ray start`), replicas by `slipstream cluster up`, gateways outside of Ray, and streams in a
closed loop. Every answer (ids, logprobs, how it ended) is compared with that of an undisturbed run. Scenes:

    kill     a raylet is killed by SIGKILL every --every seconds, and another node joins; with --gpus, which has one
             raylet, the process of a replica's actor
    drain    one replica drains under load
    scale    1 to 3 replicas, by load: few streams, all, few again

Exit status 1 if a request failed or an answer changed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cluster.nodes import Nodes, gateways, nodes
from benchmarks.cluster.traffic import Outcome, Traffic, jobs
from benchmarks.lib.percentiles import percentile
from benchmarks.lib.report import gpu_machine, write_json
from benchmarks.lib.runner import verify_state
from launcher.services.models import resolve_model
from slipstream.directory.client import RemoteDirectory
from slipstream.directory.member import Member

BACK_SECONDS = 120.0
LULL_STREAMS = 4
Facts = dict[str, Any]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenes", default="kill,drain,scale")
    parser.add_argument("--replicas", type=int, default=3, help="with --gpus as many as these")
    parser.add_argument("--raylets", type=int, default=3, help="beside the head")
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200, help="of an answer")
    parser.add_argument("--seconds", type=float, default=180.0, help="of kills; a third of it for each load of scale")
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two kills")
    parser.add_argument("--gpus", type=int, default=0, help="of this machine, one a replica")
    parser.add_argument("--model", type=Path, help="default: the demo model")
    parser.add_argument("--draft", default="inproc:ngram")
    parser.add_argument("--output", type=Path, help="JSON")
    options = parser.parse_args()
    options.replicas = options.gpus or options.replicas
    return options


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

    async def told(self, address: str) -> float:
        """When a member was first said to drain."""
        async for members in self._directory.watch():
            if any(each.draining and each.address == address for each in members):
                return time.perf_counter()
        return float("inf")


@dataclass(frozen=True, slots=True)
class Setting:
    """What a scene is played with."""

    options: argparse.Namespace
    ray: Nodes
    traffic: Traffic
    members: Members


async def kill(at: Setting) -> Facts:
    """Kills, one after the other, and how long capacity was away."""
    began, back = time.perf_counter(), []
    while time.perf_counter() < began + at.options.seconds:
        next_at = time.perf_counter() + at.options.every
        head_first = sorted((await asyncio.to_thread(at.ray.status))["replicas"], key=lambda each: each["number"])
        victim = next(each for each in head_first if each["state"] == "ready")
        killed = time.perf_counter()
        if at.options.gpus:
            os.kill(victim["process_id"], signal.SIGKILL)
        else:
            at.ray.kill_raylet(victim["process_id"])
        joining = None if at.options.gpus else asyncio.create_task(asyncio.to_thread(at.ray.add, ("--num-cpus=2",)))
        back.append(await at.members.back(at.options.replicas, victim["address"]) - killed)
        if joining is not None:
            await joining
        print(f"killed {victim['address']}: all {at.options.replicas} serve after {back[-1]:.1f} s", flush=True)
        await asyncio.sleep(max(0.0, next_at - time.perf_counter()))
    return {"kills": len(back), "seconds_until_capacity_is_back": [round(each, 2) for each in back]}


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
    began = time.perf_counter()
    for streams in (LULL_STREAMS, at.options.streams, LULL_STREAMS):
        at.traffic.streams = streams
        await asyncio.sleep(at.options.seconds / 3)
    counts = [
        (round(at - began, 1), sum(not each.draining for each in listed))
        for at, listed in at.members.lists
        if at > began
    ]
    return {"replicas_at_seconds": counts, "most": max((count for _, count in counts), default=1)}


SCENES = {"kill": kill, "drain": drain, "scale": scale}


async def scene(name: str, options: argparse.Namespace, ray: Nodes, traffic: Traffic, members: Members) -> Facts:
    """One scene under traffic, with what became of requests."""
    traffic.outcomes = []
    traffic.streams = options.streams
    following, over = asyncio.create_task(members.follow()), asyncio.Event()
    asking = asyncio.create_task(traffic.run(over))
    await members.back(1, "")
    await asyncio.sleep(2.0)
    began = time.perf_counter()
    try:
        facts = await SCENES[name](Setting(options, ray, traffic, members))
    finally:
        over.set()
        await asking
        following.cancel()
    return facts | _requests(traffic.outcomes, began)


def _requests(outcomes: list[Outcome], began: float) -> Facts:
    answered = [each for each in outcomes if not each.failure]
    pauses = [each.longest_pause for each in answered]
    return {
        "requests": len(outcomes),
        "failed": len(outcomes) - len(answered),
        "failures": sorted({each.failure for each in outcomes if each.failure})[:5],
        "changed": sum(each.changed for each in answered),
        "longest_gap_s": round(max(pauses, default=0.0), 3),
        "gap_p99_s": round(percentile(pauses, 0.99) or 0.0, 3),
        "first_token_at_seconds": [[round(each.begun - began, 1), round(each.first_token, 3)] for each in answered][
            :2000
        ],
    }


def main() -> int:
    options = parse()
    model = resolve_model(options.model)
    device = ("--device", "cuda") if options.gpus else ()
    facts: Facts = {"machine": gpu_machine("cuda" if options.gpus else "cpu"), "streams": options.streams}
    head = ("--num-cpus=16", f"--num-gpus={options.gpus}") if options.gpus else ("--num-cpus=0", "--num-gpus=0")
    with nodes(head) as ray:
        for _ in range(0 if options.gpus else options.raylets):
            ray.add(("--num-cpus=2", "--num-gpus=0"))
        up = ("up", "--model", str(model), "--draft", options.draft, *device, "--directory-port", "0")
        greeting = ray.cluster(*up, "--replicas", str(options.replicas))
        found = re.search(r"--directory (\S+)", greeting)
        assert found is not None
        with gateways(options.gateways, model, found[1]) as addresses:
            traffic = Traffic(addresses, jobs(options.streams, options.tokens), options.streams)
            asyncio.run(traffic.learn())
            for name in options.scenes.split(","):
                if name == "scale":
                    ray.cluster(*up, "--max-replicas", "3", "--target-requests", str(options.streams / 3),
                                "--upscale-delay-s", "3", "--downscale-delay-s", "8", "--look-back-s", "4")  # fmt: skip
                facts[name] = asyncio.run(scene(name, options, ray, traffic, Members(found[1])))
                shown = {key: value for key, value in facts[name].items() if key != "first_token_at_seconds"}
                print(name, shown, flush=True)
                if options.output:
                    write_json(options.output, facts)
        with suppress(Exception):  # whatever is left ends with Ray
            ray.cluster("down", "--drain-seconds", "1")
    bad = [name for name in SCENES if name in facts and (facts[name]["failed"] or facts[name]["changed"])]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
