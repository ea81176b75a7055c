"""What the gateways of several source trees cost, measured in turns: processor time a streamed token, and ratios.

Each tree has an environment of its own in which its gateway runs, and generated stubs. All gateways run throughout, on
one verify service without a model, and every round drives one after the other, in an order that turns. Run it as

    python -m benchmarks.gateway_versions --model demo_models/slipstream-demo \
        before=../before now=.:--no-access-log --rounds 12

What follows a folder behind a colon is an argument of its gateway. Processor time is the scheduler's own account of all
threads of the gateway and its text workers (/proc, Linux). Ratios are those of the rounds' pairs: each tree's cost over
that of the first one in the same round.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import uvloop

from benchmarks.gateway_cost import (
    MODES,
    Client,
    Load,
    drive,
    grpc_client,
    serve_verify,
    sse_client,
    start_gateway,
    wait_ready,
)

_APIS: Final = ("sse", "grpc")


@dataclass(frozen=True, slots=True)
class Tree:
    """A source tree under the name that the table has for it, and its gateway."""

    name: str
    process: subprocess.Popen[str]
    clients: dict[str, Client]


def _start(argument: str, model: Path, verify: str) -> Tree:
    name, _, rest = argument.partition("=")
    folder, *more = rest.split(":")
    root = Path(folder).resolve()
    process, http_port, grpc_address = start_gateway(
        model.resolve(), verify, more, python=root / ".venv/bin/python", folder=root
    )
    return Tree(name, process, {"sse": sse_client(http_port), "grpc": grpc_client(grpc_address)})


def _processor_seconds(pid: int) -> float:
    """What the scheduler has given the threads of a process and of its children so far."""
    gateway = psutil.Process(pid)
    total = 0
    for process in (gateway, *gateway.children(recursive=True)):
        for file in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
            total += int(file.read_text("ascii").split()[0])
    return total / 1e9


async def run(arguments: argparse.Namespace, trees: Sequence[Tree]) -> dict[str, dict[str, list[float]]]:
    """Microseconds a token of each round, by API and tree."""
    load = Load(arguments.streams, arguments.requests, arguments.tokens)
    tokens = load.streams * load.requests * load.tokens
    spread = 0.0 if arguments.mode == "flood" else load.tokens / arguments.rate
    for tree in trees:
        for client in tree.clients.values():
            await wait_ready(client)
            await drive(client, arguments.mode, Load(8, 4, 8))
    found: dict[str, dict[str, list[float]]] = {api: {tree.name: [] for tree in trees} for api in arguments.apis}
    for number in range(arguments.rounds):
        turned = number % len(trees)
        for api in arguments.apis:
            for tree in (*trees[turned:], *trees[:turned]):
                before = _processor_seconds(tree.process.pid)
                await drive(tree.clients[api], arguments.mode, load, spread)
                cost = (_processor_seconds(tree.process.pid) - before) / tokens * 1e6
                found[api][tree.name].append(cost)
            print(f"{number + 1:3}  {_line(api, {name: costs[-1:] for name, costs in found[api].items()})}", flush=True)
    return found


def _line(api: str, costs: dict[str, list[float]]) -> str:
    """Medians, then medians and quartiles of ratios to the first tree."""
    first = next(iter(costs.values()))
    parts = [f"{api:4}"]
    for name, each in costs.items():
        parts.append(f"{name} {statistics.median(each):.1f}")
    for name, each in list(costs.items())[1:]:
        ratios = [one / base for one, base in zip(each, first, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        parts.append(f"{name}/{next(iter(costs))} {middle:.3f} ({low:.3f} to {high:.3f})")
    return "  ".join(parts)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print the ratios, and write all rounds as JSON where asked to."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gateway_versions",
        description="Processor time a streamed token of the gateways of several source trees, in turns.",
    )
    parser.add_argument(
        "trees", nargs="+", metavar="NAME=FOLDER[:ARGUMENT]", help="source trees, the one compared with first"
    )
    parser.add_argument("--model", type=Path, required=True, help="folder whose tokenizer and chat template are used")
    parser.add_argument("--streams", type=int, default=64, help="streams at once")
    parser.add_argument("--requests", type=int, default=3, help="requests of each stream, one after the other")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a request")
    parser.add_argument("--rate", type=float, default=20.0, help="tokens a second of a stream")
    parser.add_argument("--rounds", type=int, default=12, help="pairs to take ratios of")
    parser.add_argument("--mode", choices=MODES, default="gathered", help="way of sending")
    parser.add_argument("--apis", nargs="+", choices=_APIS, default=list(_APIS), help="what clients speak")
    parser.add_argument("--output", type=Path, help="file for the results as JSON")
    arguments = parser.parse_args(argv)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    verify = context.Process(target=serve_verify, args=(arguments.rate, theirs), daemon=True)
    verify.start()
    address = f"127.0.0.1:{ours.recv()}"
    trees: list[Tree] = []
    try:
        trees.extend(_start(argument, arguments.model, address) for argument in arguments.trees)
        found = uvloop.run(run(arguments, trees))
    finally:
        for tree in trees:
            tree.process.terminate()
            tree.process.wait()
        verify.kill()
        verify.join()
    for api, costs in found.items():
        print(f"all  {_line(api, costs)}")
    if arguments.output:
        arguments.output.write_text(json.dumps(found, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
