"""A server under steady load for a long time: memory, descriptors, threads and latency have to stay as they are.

    python -m benchmarks.soak --minutes 60 --load 0.8 --output benchmarks/results/soak_cpu.json --plot docs/soak.png
    python -m benchmarks.soak --minutes 8 --device cuda --model DIR --output benchmarks/results/soak_cuda.json
    nice python -m benchmarks.soak --server-cores 0 --client-cores 1        # beside other work

Starts `slipstream serve` on free ports of loopback, measures in a closed loop how many requests a second it serves, and
then has requests of every kind arrive at --load of that rate, at random (a Poisson process): by HTTP and gRPC, streamed
and whole, with every kind of drafting, some of whose clients leave or read slowly. Every --sample-seconds it looks at
memory, descriptors and threads of each process, and at the memory of the GPU.

Exit status 1 if a process ended or its memory grew in the second half by more than --memory-slope (MiB an hour, by
least squares; a growth below 8 MiB in all is none), if there are more descriptors or threads than before the load once
it is over, or in its last quarter than in the second, if TTFT or TPOT of the last quarter are above --p50-ratio or
--p99-ratio times those of the second, or if more than --failures requests failed.

Another model than the demo model is named by --model DIR and --draft, as of `slipstream serve`; a model at the shapes
of Llama-3.1-8B is made by `python -m benchmarks.inflate`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.lib.process_samples import device_bytes, sample_processes
from benchmarks.lib.report import gpu_machine, plain_options, write_json
from benchmarks.lib.request_mix import Question, questions
from benchmarks.lib.server_process import Server, served
from benchmarks.soak import tables
from benchmarks.soak.judge import Bounds, Look, judge
from benchmarks.soak.load import Arrivals, Capacity, measure_capacity
from benchmarks.soak.windows import windows_of
from launcher.services.commands import proposer_name
from launcher.services.models import resolve_draft, resolve_model

PROPORTIONAL_EVERY = 6
"""Samples, of which one has PSS: the kernel walks all pages for it."""
TELL_SECONDS = 60.0
IDLE_SECONDS = 2.0
"""From the last request to a look without load."""
CPU_PAGES = 2048
"""Of the verify service on a CPU unless --serve-arg says otherwise: pages count as memory once they are touched, and of
a GiB of them some would be touched for the first time after half an hour."""
DRAIN_SECONDS = 5


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    usual = Bounds()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--load", type=float, default=0.8, help="part of the measured capacity")
    parser.add_argument("--rate", type=float, help="requests a second, in place of --load and a measurement")
    parser.add_argument("--capacity-seconds", type=float, default=25.0, help="of the closed loop")
    parser.add_argument("--clients", type=int, default=16, help="of the closed loop")
    parser.add_argument("--sample-seconds", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--questions", type=int, default=96)
    parser.add_argument("--longest", type=int, default=600, help="tokens of an answer")
    parser.add_argument("--device", default="cpu", help="of the verify service: cpu, cuda or cuda:N")
    parser.add_argument("--model", type=Path, help="default: the demo model")
    parser.add_argument("--draft", action="append", help="as of slipstream serve")
    parser.add_argument("--serve-arg", action="append", default=[], help="passed to slipstream serve")
    parser.add_argument("--server-cores", type=_cores, default=(), help="that services may use: 0 or 0,1")
    parser.add_argument("--client-cores", type=_cores, default=(), help="that the clients may use")
    parser.add_argument("--memory-slope", type=float, default=usual.memory_mib_per_hour)
    parser.add_argument("--p50-ratio", type=float, default=usual.p50_ratio)
    parser.add_argument("--p99-ratio", type=float, default=usual.p99_ratio)
    parser.add_argument("--failures", type=int, default=usual.failures)
    parser.add_argument("--log", type=Path, help="where the services' log goes; default: a temporary file")
    parser.add_argument("--output", type=Path, help="JSON")
    parser.add_argument("--plot", type=Path, help="PNG; left out where matplotlib is not installed")
    options = parser.parse_args(arguments)
    if options.rate is None and not options.load > 0:
        parser.error("--load: above 0")
    return options


def _cores(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


@dataclass(slots=True)
class Seen:
    """What there is to judge. `span` is begin and end of the load in time.perf_counter(), `idle` before and after."""

    capacity: Capacity | None
    arrivals: Arrivals
    looks: list[Look]
    span: tuple[float, float]
    idle: tuple[Look, Look]


async def observe(server: Server, options: argparse.Namespace, proposers: Sequence[str]) -> Seen:
    """Measure, load, and look."""
    asked = questions(options.questions, options.seed, longest=options.longest)
    capacity = None
    if options.rate is None:
        capacity = await _measured(server, asked, proposers, options)
    rate = options.rate if capacity is None else options.load * capacity.requests_per_second
    print(f"{rate:.2f} requests/s for {options.minutes:g} minutes", flush=True)
    arrivals = Arrivals(server, asked, proposers, rate, options.seed)
    before = await _idle(server, options)
    looks: list[Look] = []
    begin = time.perf_counter()
    end = begin + 60 * options.minutes
    async with asyncio.TaskGroup() as group:
        looking = group.create_task(_look(server, options, arrivals, looks))
        await arrivals.run(end - begin)
        looking.cancel()
    return Seen(capacity, arrivals, looks, (begin, end), (before, await _idle(server, options)))


async def _idle(server: Server, options: argparse.Namespace) -> Look:
    """A look once connections of clients that have left are closed."""
    await asyncio.sleep(IDLE_SECONDS)
    return await asyncio.to_thread(_sample, server, options.device, 0, proportional=True)


async def _measured(
    server: Server, asked: Sequence[Question], proposers: Sequence[str], options: argparse.Namespace
) -> Capacity:
    capacity = await measure_capacity(
        server, asked, proposers, clients=options.clients, seconds=options.capacity_seconds, seed=options.seed
    )
    served_at = f"{capacity.requests_per_second:.2f} requests/s, {capacity.tokens_per_second:.0f} tokens/s"
    print(f"capacity with {options.clients} clients: {served_at}", flush=True)
    return capacity


async def _look(server: Server, options: argparse.Namespace, arrivals: Arrivals, looks: list[Look]) -> None:
    """Sample until cancelled, with a line a minute."""
    told = time.monotonic()
    while True:
        proportional = len(looks) % PROPORTIONAL_EVERY == 0
        look = await asyncio.to_thread(_sample, server, options.device, arrivals.in_flight, proportional=proportional)
        looks.append(look)
        if time.monotonic() - told >= TELL_SECONDS:
            told = time.monotonic()
            failed = sum(request.failure is not None for request in arrivals.ended)
            memory = ", ".join(f"{name} {sample.rss >> 20} MiB" for name, sample in look.processes.items())
            print(f"{len(arrivals.ended)} ended, {failed} failed, {arrivals.in_flight} in flight; {memory}", flush=True)
        await asyncio.sleep(options.sample_seconds)


def _sample(server: Server, device: str, in_flight: int, *, proportional: bool) -> Look:
    processes = sample_processes(server.pids(), proportional=proportional)
    return Look(time.perf_counter(), processes, device_bytes() if device.startswith("cuda") else 0, in_flight)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    model = resolve_model(options.model)
    draft = resolve_draft(options.draft or (), demo=options.model is None, target=model)
    serve = ["--drain-seconds", str(DRAIN_SECONDS), f"--verify-arg=--device={options.device}", *options.serve_arg]
    if options.device == "cpu" and not any(each.startswith("--num-pages") for each in options.serve_arg):
        serve += ["--num-pages", str(CPU_PAGES)]
    bounds = Bounds(
        memory_mib_per_hour=options.memory_slope,
        p50_ratio=options.p50_ratio,
        p99_ratio=options.p99_ratio,
        failures=options.failures,
    )
    with tempfile.TemporaryDirectory() as folder:
        log = options.log or Path(folder, "log")
        with served(model, draft, log, *serve, cores=options.server_cores) as server:
            if options.client_cores:
                os.sched_setaffinity(0, options.client_cores)
            proposers = [proposer_name(spec) for spec in draft]
            seen = asyncio.run(observe(server, options, proposers))
    facts, broken = judge(seen.looks, seen.arrivals.ended, seen.span, seen.idle, bounds)
    print(f"\n{tables.text(facts)}\n")
    print(f"NOT FLAT: {'; '.join(broken)}" if broken else "flat", flush=True)
    windows = windows_of(seen.looks, seen.arrivals.ended, seen.span)
    if options.output:
        write_json(options.output, _content(options, seen, facts, broken, windows))
    if options.plot and find_spec("matplotlib"):
        tables.plot(options.plot, windows)
    return int(bool(broken))


def _content(
    options: argparse.Namespace, seen: Seen, facts: dict[str, Any], broken: Sequence[str], windows: dict[str, Any]
) -> dict[str, Any]:
    asked = plain_options(options)
    return {
        "machine": gpu_machine(options.device),
        "options": asked,
        "machine_cores": os.cpu_count(),
        "niceness": os.nice(0),
        "capacity": None if seen.capacity is None else seen.capacity._asdict(),
        "requests_per_second": seen.arrivals.rate,
        "broken": list(broken),
        **facts,
        "windows": windows,
    }


if __name__ == "__main__":
    sys.exit(main())
