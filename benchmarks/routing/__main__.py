"""Routing among replicas: a simulation in virtual time, real verify services of a small model, and a decision's cost.

    python -m benchmarks.routing --output FILE               # all of it, some ten minutes on two cores
    python -m benchmarks.routing --parts decisions           # the cost alone

*simulated*: steps of the verify services take what formulas say (about an 8B model on an H200), while the policies are
the gateway's own and the prefix caches the verify service's own. *looped*: the same with clients that wait for
their answers, and prompts that share nothing. *crowded*: a few prefixes that all requests share, and batches that are
full at times. *served*: verify services on this machine's CPU, which they share, behind the gateway's client. In the
first and the last either tenants have a long prefix each, more than one service's cache holds, or no prompt shares
anything with another. The first third of the requests fills caches and is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.lib.report import gpu_machine, write_json
from benchmarks.lib.repository import DEMO_MODEL
from benchmarks.routing import served
from benchmarks.routing.decision import decisions
from benchmarks.routing.machine import MachineCosts
from benchmarks.routing.simulation import policy_of, simulate, simulate_loop
from benchmarks.routing.tables import text
from benchmarks.routing.workload import Workload
from gateway.config import RoutingName

POLICIES: Final[tuple[RoutingName, ...]] = ("prefix", "least-loaded", "random")
PARTS: Final = ("simulated", "looped", "crowded", "served", "decisions")
CLIENTS: Final = (1, 2, 4)


def main() -> None:
    """Print the tables, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="which of them (all)")
    parser.add_argument("--output", type=Path, help="where the figures go")
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="model that is served (the demo model)")
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[10.0, 20.0, 35.0], help="simulated requests a second"
    )
    parser.add_argument("--requests", type=int, default=1800, help="simulated for each figure")
    parser.add_argument("--replicas", type=int, default=8, help="simulated services")
    parser.add_argument("--tenants", type=int, default=150, help="simulated tenants")
    parser.add_argument(
        "--rounds", type=int, default=3, help="of each policy with real services, in an order that turns with each"
    )
    asked = parser.parse_args()
    settings = {name: value for name, value in vars(asked).items() if name not in {"output", "model", "parts"}}
    content: dict[str, Any] = {
        "machine": gpu_machine("cpu"),
        "settings": settings,
        "simulated_costs": asdict(MachineCosts()),
        "served_load": asdict(served.ServedLoad()),
    }
    if "simulated" in asked.parts:
        content["simulated"] = list(_simulated(asked))
    if "looped" in asked.parts:
        content["looped"] = list(_looped(asked))
    if "crowded" in asked.parts:
        content["crowded"] = list(_crowded(asked))
    if "served" in asked.parts:
        with served.services(asked.model, served.ServedLoad()) as addresses:
            content["served"] = asyncio.run(_served(asked, addresses))
    if "decisions" in asked.parts:
        content["decisions"] = decisions(asked.replicas)
    print(text(content))
    if asked.output:
        write_json(asked.output, content)


def _simulated(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for rate in asked.rates:
        for prompts, tenants, tokens in (("shared", asked.tenants, 6000), ("apart", 0, 3000)):
            workload = Workload(rate, asked.requests, tenants, tokens, 400, 150)
            for name in POLICIES:
                found = simulate(workload.requests(0), policy_of(name, 0), MachineCosts(), asked.replicas)
                yield {"requests/s": rate, "prompts": prompts, "policy": name} | asdict(found)


def _looped(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Nothing shared, and so many clients a service that each send a request once the last one is answered."""
    for clients in CLIENTS:
        for tokens, output in ((1200, 8), (1200, 64), (3000, 150)):
            workload = Workload(1.0, asked.requests // 3, 0, tokens, 0, output)
            for name in POLICIES:
                found = simulate_loop(
                    workload.requests(0), policy_of(name, 0), MachineCosts(), asked.replicas, clients * asked.replicas
                )
                yield {"clients a service": clients, "prompt": tokens, "output": output, "policy": name} | asdict(found)


def _crowded(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Four services with 16 lines each, which few prefixes keep busy."""
    for prefixes in (1, 4):
        for rate in (15.0, 30.0):
            workload = Workload(rate, asked.requests, prefixes, 6000, 400, 400)
            for name in POLICIES:
                found = simulate(workload.requests(0), policy_of(name, 0), MachineCosts(lines=16), 4)
                yield {"prefixes": prefixes, "requests/s": rate, "policy": name} | asdict(found)


def in_turn(round_: int) -> tuple[RoutingName, ...]:
    """The policies in an order of which each has each place equally often: what ran before warms or disturbs."""
    first = round_ % len(POLICIES)
    return POLICIES[first:] + POLICIES[:first]


async def _served(asked: argparse.Namespace, addresses: Sequence[str]) -> list[dict[str, Any]]:
    shared = served.ServedLoad()
    loads = {"shared": shared, "apart": replace(shared, tenants=0, requests=shared.requests // 2)}
    rows: list[dict[str, Any]] = []
    for round_ in range(asked.rounds):
        for prompts, load in loads.items():
            for name in in_turn(round_):
                found = await served.measure(addresses, name, load, len(rows))
                rows.append({"round": round_, "prompts": prompts, "policy": name} | asdict(found))
    return rows


if __name__ == "__main__":
    main()
