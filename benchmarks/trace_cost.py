"""What traces of speculation cost those that ask for them, and those that do not.

Real services on this machine; the same requests over gRPC in rounds that take turns: none traced, all traced. Run it as

    python -m benchmarks.trace_cost --model demo_models/slipstream-demo --draft ngram

The table has tokens a second of each kind of round, the median and the ratio of the medians, and the CPU time of verify
service and gateway a token, which says more where other work shares the machine. Answers of all rounds must be equal.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from launcher.supervision.cluster import Cluster
from slipstream import AsyncClient, Completion, SpeculationOptions

PROMPTS: Final = ("Explain why the sky is blue.", "What is a database?", "How do I make tea?", "Tell me about cats.")
SERVICES: Final = ("verify", "gateway")


@dataclass(frozen=True, slots=True)
class Round:
    """Tokens a second of one round, and CPU seconds of each service a token."""

    rate: float
    cpu: dict[str, float]


def cpu_seconds(cluster: Cluster) -> dict[str, float]:
    """User and system time of each service so far, its children's included."""
    found = {}
    for name in SERVICES:
        process = psutil.Process(cluster.processes[name].pid)
        family = [process, *process.children(recursive=True)]
        found[name] = sum(sum(each.cpu_times()[:2]) for each in family)
    return found


async def ask_all(client: AsyncClient, streams: int, tokens: int, *, trace: bool) -> list[Completion]:
    """One answer a stream, all at a time."""
    wish = SpeculationOptions(enabled=True, trace=trace)
    asked = [
        client.generate(
            messages=[{"role": "user", "content": PROMPTS[index % len(PROMPTS)]}],
            max_tokens=tokens, temperature=0.7, seed=index, ignore_eos=True, speculation=wish,
        )
        for index in range(streams)
    ]  # fmt: skip
    return list(await asyncio.gather(*asked))


async def measure(cluster: Cluster, streams: int, tokens: int, rounds: int) -> dict[bool, list[Round]]:
    """Rounds by whether they were traced. The first of each kind warms up and does not count."""
    found: dict[bool, list[Round]] = {False: [], True: []}
    answers = set()
    async with AsyncClient(cluster.gateway_grpc) as client:
        for number in range(2 * (rounds + 1)):
            trace = bool(number % 2)
            before, begun = cpu_seconds(cluster), time.perf_counter()
            completions = await ask_all(client, streams, tokens, trace=trace)
            seconds, after = time.perf_counter() - begun, cpu_seconds(cluster)
            count = sum(len(each.token_ids) for each in completions)
            answers.add(tuple(each.token_ids for each in completions))
            if number > 1:
                cpu = {name: (after[name] - before[name]) / count for name in SERVICES}
                found[trace].append(Round(count / seconds, cpu))
    if len(answers) != 1:
        raise SystemExit("answers differ")
    return found


def table(streams: int, found: dict[bool, list[Round]]) -> str:
    """One line a number of streams."""
    rates = {trace: statistics.median(each.rate for each in rounds) for trace, rounds in found.items()}
    parts = [f"{rates[False]:.1f}", f"{rates[True]:.1f}", f"{rates[True] / rates[False]:.3f}"]
    for name in SERVICES:
        cpu = [1e6 * statistics.median(each.cpu[name] for each in found[trace]) for trace in (False, True)]
        parts.append(f"{cpu[0]:.0f}, {cpu[1]:.0f}")
    return f"| {streams} | " + " | ".join(parts) + " |"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of the target model")
    parser.add_argument(
        "--draft", action="append", required=True, help="proposer, as of `slipstream serve`; the first drafts"
    )
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 64], help="requests at a time")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each kind")
    given = parser.parse_args(argv)
    most = str(max(given.streams))
    arguments = ("--draft-deadline-ms", "5000", "--max-running", most)
    with Cluster(
        given.model, draft=given.draft, verify_args=arguments, gateway_args=("--max-traced-choices", most)
    ) as cluster:
        print("| streams | tokens/s | traced | ratio | verify us a token, traced | gateway us a token, traced |")
        print("|---|---|---|---|---|---|")
        for streams in given.streams:
            found = asyncio.run(measure(cluster, streams, given.tokens, given.rounds))
            print(table(streams, found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
