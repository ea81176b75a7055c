"""What tenants get beside one another: time to the first token, time a token, refusals, with and without fair shares.

    python -m benchmarks.fairness --seconds 20 --output benchmarks/results/fairness.json --plot docs/fairness.png

Starts the services twice on loopback, with `--scheduling fair` and `fcfs`, and has crowds of clients ask through the
gateway, each client one request after the other. A scenario's figures are compared with those of its own baseline, in
which the other tenant offers no more than the one that is measured (or asks for no trees), under the same scheduling.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.fairness.report import plot, tables
from benchmarks.lib.report import machine, write_json
from benchmarks.lib.repository import DEMO_DRAFT_MODEL, DEMO_MODEL
from launcher.supervision.cluster import Cluster
from slipstream import AsyncClient
from slipstream.rpc.errors import ResourceExhaustedError

SCHEDULING = ("fair", "fcfs")
PLACES = {"--max-running": 16, "--max-queued": 4}
WEIGHTS = {"gold": 3.0}
PROMPT_TOKENS, OUTPUT_TOKENS = 40, 48
RETRY_SECONDS = 0.25
"""After a refusal."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """Clients of one tenant, or of one each, that ask again and again; with trees they insist on the largest."""

    name: str
    clients: int
    trees: bool = False
    tenants: int = 1

    def key(self, client: int) -> str:
        """API key of a client, whose tenant has the same name."""
        return self.name if self.tenants == 1 else f"{self.name}-{client % self.tenants}"

    @property
    def keys(self) -> list[str]:
        return sorted({self.key(client) for client in range(self.clients)})


@dataclass(frozen=True, slots=True)
class Scenario:
    """Crowds at the same time. `baseline` names the scenario that its first crowd is compared with."""

    name: str
    crowds: tuple[Crowd, ...]
    baseline: str = ""


SCENARIOS = (
    Scenario("1:1", (Crowd("light", 2), Crowd("heavy", 2))),
    Scenario("1:10", (Crowd("light", 2), Crowd("heavy", 20)), "1:1"),
    Scenario("weights 3:1", (Crowd("gold", 12), Crowd("basic", 12))),
    Scenario("plain neighbours", (Crowd("plain", 1), Crowd("neighbour", 8, tenants=8))),
    Scenario("insisting neighbours", (Crowd("plain", 1), Crowd("neighbour", 8, True, 8)), "plain neighbours"),
)


@dataclass(slots=True)
class Seen:
    """What one crowd's clients saw: seconds to first tokens, mean seconds a token after that, tokens, refusals."""

    first: list[float] = field(default_factory=list)
    per_token: list[float] = field(default_factory=list)
    tokens: int = 0
    refused: int = 0

    def summary(self, seconds: float) -> dict[str, Any]:
        """Milliseconds and tokens a second."""
        return {
            "requests": len(self.per_token),
            "refused": self.refused,
            **{f"ttft_ms_{name}": _at(self.first, part) for name, part in (("p50", 0.5), ("p90", 0.9))},
            **{f"tpot_ms_{name}": _at(self.per_token, part) for name, part in (("p50", 0.5), ("p90", 0.9))},
            "tokens_per_second": round(self.tokens / seconds, 1),
        }


def _at(values: Sequence[float], part: float) -> float | None:
    ordered = sorted(values)
    return round(1e3 * ordered[min(len(ordered) - 1, int(part * len(ordered)))], 2) if ordered else None


async def _ask(client: AsyncClient, crowd: Crowd, seed: str, seen: Seen, until: float) -> None:
    """One request; what ends after `until`, time.perf_counter() in seconds, counts for its first token alone."""
    pick = random.Random(seed)
    begun, first, last, tokens, later = time.perf_counter(), 0.0, 0.0, 0, 0
    speculation: dict[str, Any] = {"enabled": True, "max_nodes": 64} if crowd.trees else {"enabled": False}
    try:
        async with client.stream(
            token_ids=[pick.randrange(100, 1000) for _ in range(PROMPT_TOKENS)],
            max_tokens=OUTPUT_TOKENS,
            ignore_eos=True,
            temperature=0.0,
            speculation=speculation,  # type: ignore[arg-type]  # a literal of the right keys
        ) as events:
            async for event in events:
                last = time.perf_counter()
                if last <= until:
                    seen.tokens += len(event.token_ids)
                if not first:
                    first = last
                else:
                    later += len(event.token_ids)
                tokens += len(event.token_ids)
    except ResourceExhaustedError:
        seen.refused += 1
        await asyncio.sleep(RETRY_SECONDS)
        return
    seen.first.append(first - begun)
    if last <= until and later:
        seen.per_token.append((last - first) / later)


async def _client(address: str, crowd: Crowd, index: int, seen: Seen, until: float, delay: float) -> None:
    await asyncio.sleep(delay)
    turn = 0
    async with AsyncClient(address, api_key=crowd.key(index)) as client:
        while time.perf_counter() < until:
            await _ask(client, crowd, f"{crowd.name} {index} {turn}", seen, until)
            turn += 1


async def measure(address: str, scenario: Scenario, seconds: float) -> dict[str, dict[str, Any]]:
    """Each crowd's figures of so many seconds. The first crowd comes a moment after the others."""
    seen = {crowd.name: Seen() for crowd in scenario.crowds}
    begun = time.perf_counter()
    await asyncio.gather(
        *(
            _client(address, crowd, index, seen[crowd.name], begun + seconds, 0.5 if number == 0 else 0.02 * index)
            for number, crowd in enumerate(scenario.crowds)
            for index in range(crowd.clients)
        )
    )
    return {name: each.summary(seconds) for name, each in seen.items()}


def keys_file(folder: Path) -> Path:
    """API keys of all crowds' tenants, and the weights."""
    keys = sorted({key for scenario in SCENARIOS for crowd in scenario.crowds for key in crowd.keys})
    lines = ["[keys]", *(f'"{key}" = "{key}"' for key in keys)]
    for tenant, weight in WEIGHTS.items():
        lines += [f"[tenants.{tenant}]", f"weight = {weight}"]
    path = folder / "keys.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def run(model: Path, draft: Path, seconds: float, deadline_ms: float, scenarios: Sequence[Scenario]) -> dict[str, Any]:
    """Figures by scheduling, scenario and crowd."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        keys = keys_file(Path(folder))
        for scheduling in SCHEDULING:
            places = [f"{name}={value}" for name, value in PLACES.items()]
            cluster = Cluster(
                model,
                draft=[f"draft-model:{draft}"],
                verify_args=[f"--scheduling={scheduling}", f"--draft-deadline-ms={deadline_ms}", *places],
                draft_args=["--max-nodes=64"],
                gateway_args=[f"--api-keys-file={keys}"],
            )
            with cluster:
                asyncio.run(measure(cluster.gateway_grpc, scenarios[0], 2.0))
                figures[scheduling] = {
                    scenario.name: asyncio.run(measure(cluster.gateway_grpc, scenario, seconds))
                    for scenario in scenarios
                }
    return figures


def ratios(figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of each scenario with a baseline: its first crowd's times over those of the baseline."""
    found: list[dict[str, Any]] = []
    for scheduling, measured in figures.items():
        for scenario in SCENARIOS:
            if scenario.baseline and scenario.name in measured and scenario.baseline in measured:
                crowd = scenario.crowds[0].name
                here, there = measured[scenario.name][crowd], measured[scenario.baseline][crowd]
                entry: dict[str, Any] = {"scheduling": scheduling, "scenario": scenario.name, "tenant": crowd}
                for key in ("ttft_ms_p50", "ttft_ms_p90", "tpot_ms_p50", "tpot_ms_p90"):
                    usable = here[key] is not None and there[key]
                    entry[key.replace("_ms", "")] = round(here[key] / there[key], 2) if usable else None
                found.append(entry)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write what is asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fairness", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=DEMO_MODEL)
    parser.add_argument("--draft", type=Path, default=DEMO_DRAFT_MODEL)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each scenario")
    parser.add_argument("--deadline-ms", type=float, default=20.0, help="of trees; on a busy machine few come in 20")
    parser.add_argument("--only", default="", help="scenarios whose names contain this")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args(arguments)
    scenarios = [scenario for scenario in SCENARIOS if given.only in scenario.name]
    figures = run(given.model, given.draft, given.seconds, given.deadline_ms, scenarios)
    content = {
        "machine": machine(),
        "settings": {
            "seconds": given.seconds,
            "deadline_ms": given.deadline_ms,
            "prompt_tokens": PROMPT_TOKENS,
            "output_tokens": OUTPUT_TOKENS,
            **PLACES,
        },
        "scenarios": [asdict(scenario) for scenario in scenarios],
        "figures": figures,
        "ratios": ratios(figures),
    }
    print(tables(content))
    if given.output:
        write_json(given.output, content)
    if given.plot:
        plot(given.plot, content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
