"""A cluster of replicas on a Ray of this machine: what kills, drains and steps of load cost streams.

    python -m benchmarks.cluster --output benchmarks/results/cluster.json
    python -m benchmarks.cluster --scenes kill --gpus 2 --output gpus.json      # one GPU a replica
    python -m benchmarks.cluster --scenes kill --gpus 2 --device cpu            # placed by GPUs that are not there

Starts a head and raylets (`ray start`), replicas by `slipstream cluster up`, gateways outside of Ray, and streams in a
closed loop. Every answer (ids, logprobs, how it ended) is compared with that of an undisturbed run. Scenes:

    kill     a raylet is killed by SIGKILL every --every seconds, and another node joins once all serve again; with
             --kill actor the process of a replica's actor, of which Ray knows no more than that it is gone
    drain    one replica drains under load
    scale    1 to 3 replicas, by load: few streams, all, few again
    controller  the controller's process is killed, with the directory in it
    gateway  one gateway is killed and started again; requests of others are not to notice
    split    nothing passes between one gateway, which gets a network namespace (root, Linux), and one replica for 30 s
    head     Ray's head is killed, after which nothing comes back: how long requests go on; the last scene

Exit status 1 if a request failed or an answer changed.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import re
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from benchmarks.cluster import faults, plot, scenes
from benchmarks.cluster.gateways import Gateways
from benchmarks.cluster.nodes import nodes
from benchmarks.cluster.scenes import Facts, Members, Setting
from benchmarks.cluster.traffic import Outcome, Traffic, jobs
from benchmarks.lib.percentiles import percentile
from benchmarks.lib.report import gpu_machine, write_json
from launcher.services.models import resolve_model


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenes", default="kill,drain,scale")
    parser.add_argument("--replicas", type=int, default=3, help="with --gpus as many as these")
    parser.add_argument("--standby", type=int, default=2, help="replicas that stand by")
    parser.add_argument("--raylets", type=int, default=3, help="beside the head")
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200, help="of an answer")
    parser.add_argument("--seconds", type=float, default=180.0, help="of kills; a third of it for each load of scale")
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two kills")
    parser.add_argument(
        "--kill", choices=("raylet", "actor"), help="what is killed; default: raylet, with --gpus actor"
    )
    parser.add_argument("--gpus", type=int, default=0, help="of this machine, one a replica, all of one raylet")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="what replicas run on; default: cuda with --gpus")
    parser.add_argument("--model", type=Path, help="default: the demo model")
    parser.add_argument("--draft", default="inproc:ngram")
    parser.add_argument("--plot", type=Path, help="PNG of the scene scale; left out where matplotlib is not installed")
    parser.add_argument("--output", type=Path, help="JSON")
    options = parser.parse_args()
    options.replicas = options.gpus or options.replicas
    options.device = options.device or ("cuda" if options.gpus else "cpu")
    options.kill = options.kill or ("actor" if options.gpus else "raylet")
    if options.gpus and options.kill == "raylet":
        parser.error("--kill raylet: with --gpus there is one raylet, and nothing would be left")
    return options


SCENES = {"kill": scenes.kill, "drain": scenes.drain, "scale": scenes.scale, "controller": faults.controller,
          "gateway": faults.gateway, "split": faults.split, "head": faults.head}  # fmt: skip


async def scene(name: str, at: Setting) -> Facts:
    """One scene under traffic, with what became of requests."""
    traffic, members = at.traffic, at.members
    traffic.outcomes = []
    traffic.streams = scenes.LULL_STREAMS if name == "scale" else at.options.streams
    following, over = asyncio.create_task(members.follow()), asyncio.Event()
    asking = asyncio.create_task(traffic.run(over))
    await members.back(1, "")
    await asyncio.sleep(2.0)
    began = time.perf_counter()
    try:
        facts = await SCENES[name](at)
    finally:
        over.set()
        await asking
        following.cancel()
    gaps = [_gaps(traffic.outcomes, *span) for span in pairwise((*at.kills, math.inf))]
    return facts | _requests(traffic.outcomes, began) | ({"gaps_by_kill": gaps} if gaps else {})


def _requests(outcomes: list[Outcome], began: float) -> Facts:
    answered = [each for each in outcomes if not each.failure]
    gaps = [each.gap for each in answered]
    return {
        "requests": len(outcomes),
        "failed": len(outcomes) - len(answered),
        "failures": sorted({each.failure for each in outcomes if each.failure})[:5],
        "changed": sum(each.changed for each in answered),
        "longest_gap_s": round(max(gaps, default=0.0), 3),
        "gap_p99_s": round(percentile(gaps, 0.99) or 0.0, 3),
        "longest_pause_s": round(max((each.longest_pause for each in answered), default=0.0), 3),
        "longest_first_token_s": round(max((each.first_token for each in answered), default=0.0), 3),
        "first_token_at_seconds": [[round(each.begun - began, 1), round(each.first_token, 3)] for each in answered][
            :2000
        ],
    }


def _gaps(outcomes: Sequence[Outcome], killed: float, next_kill: float) -> Facts:
    """The longest pause of requests that ran at a kill, and the longest time to the first token of those after it."""
    answered = [each for each in outcomes if not each.failure]
    running = [each for each in answered if each.begun < killed < each.ended]
    after = [each for each in answered if killed <= each.begun < next_kill]
    return {
        "ran": len(running),
        "longest_pause_s": round(max((each.longest_pause for each in running), default=0.0), 2),
        "longest_first_token_s": round(max((each.first_token for each in (*running, *after)), default=0.0), 2),
    }


def main() -> int:
    options = parse()
    model = resolve_model(options.model)
    facts: Facts = {"machine": gpu_machine(options.device), "gpus": options.gpus, "streams": options.streams}
    head = ("--num-cpus=16", f"--num-gpus={options.gpus}") if options.gpus else ("--num-cpus=0", "--num-gpus=0")
    with nodes(head) as ray:
        for _ in range(0 if options.gpus else options.raylets):
            ray.add(("--num-cpus=2", "--num-gpus=0"))
        gpus = str(int(options.gpus > 0))
        up = ("up", "--model", str(model), "--draft", options.draft, "--device", options.device, "--gpus", gpus,
              "--directory-port", "0", "--standby", str(options.standby))  # fmt: skip
        greeting = ray.cluster(*up, "--replicas", str(options.replicas))
        found = re.search(r"--directory (\S+)", greeting)
        assert found is not None
        wanted = options.scenes.split(",")
        with Gateways(options.gateways, model, found[1], apart="split" in wanted) as gateways:
            traffic = Traffic(gateways.addresses, jobs(options.streams, options.tokens), options.streams)
            asyncio.run(traffic.learn())
            for name in wanted:
                if name == "scale":
                    ray.cluster(*up, "--max-replicas", "3", "--target-requests", str(options.streams / 3),
                                "--upscale-delay-s", "3", "--downscale-delay-s", "8", "--look-back-s", "4")  # fmt: skip
                facts[name] = asyncio.run(scene(name, Setting(options, ray, traffic, Members(found[1]), gateways)))
                shown = {key: value for key, value in facts[name].items() if key != "first_token_at_seconds"}
                print(name, shown, flush=True)
                if options.output:
                    write_json(options.output, facts)
        if options.plot and "scale" in facts and find_spec("matplotlib"):
            plot.draw(options.plot, facts["scale"])
        with suppress(Exception):  # whatever is left ends with Ray
            ray.cluster("down", "--drain-seconds", "1")
    bad = [
        name
        for name in SCENES
        if name in facts and name != "head" and (facts[name]["failed"] or facts[name]["changed"])
    ]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
