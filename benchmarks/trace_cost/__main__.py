"""What spans of OpenTelemetry and traces of speculation cost those that ask for them, and those that do not.

    python -m benchmarks.trace_cost --model demo_models/slipstream-demo --draft ngram

*pieces*: what the code of spans and traces takes in itself, in processor time, run in this process. In the other parts
real services on this machine answer the same requests over HTTP in two ways that take turns; answers must be equal.
*spans*: services that send spans to a collector, a process of its own, beside services that do not. *request*: the same
with one token a request. *traced*: all requests ask for `speculation.trace`. *beside*: half of them do, and the figures
are the others'. Where other work shares the machine, pieces can be trusted, and whole servers to some per cent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks.lib.report import gpu_machine, write_json
from benchmarks.trace_cost.collector import collector
from benchmarks.trace_cost.pieces import measure as measure_pieces
from benchmarks.trace_cost.rounds import Load, Round, Way, take_turns
from benchmarks.trace_cost.tables import text
from launcher.supervision.cluster import Cluster

PARTS: Final = ("pieces", "spans", "request", "traced", "beside")
PLAIN: Final = "plain"
OTHER: Final = "other"
FEWEST: Final = 4
"""Requests of a round."""
BESIDE: Final = 16
"""Requests at a time, of which half ask for their trace."""


def beside_plain(found: Mapping[str, list[Round]], load: Load, *, untraced: bool = False) -> dict[str, Any]:
    """Ratios of the other way's rounds to the plain ones, and what a request costs more, in microseconds.

    `untraced`: of requests alone that ask for no trace, whose processor time is not known apart.
    """
    pairs = list(zip(found[PLAIN], found[OTHER], strict=True))
    rates = [
        (plain.untraced_rate, other.untraced_rate) if untraced else (plain.rate, other.rate) for plain, other in pairs
    ]
    return {
        "streams": load.streams,
        "rate_ratios": [other / plain for plain, other in rates],
        "cpu_ratios": [] if untraced else [other.cpu_seconds / plain.cpu_seconds for plain, other in pairs],
        "added_us": []
        if untraced
        else [1e6 * (other.cpu_seconds - plain.cpu_seconds) / load.requests for plain, other in pairs],
        "cpu_us_a_token": {
            way: {
                name: sorted(1e6 * each.cpu[name] / load.requests / load.tokens for each in rounds)[len(rounds) // 2]
                for name in rounds[0].cpu
            }
            for way, rounds in found.items()
        },
    }


def measure(given: argparse.Namespace, off: Cluster, on: Cluster | None) -> Iterator[dict[str, Any]]:
    """Every part that is asked for; `on` are services that trace, `off` are the plain ones."""
    most = max(given.streams)

    def part(way: str, bound: str, load: Load, other: Way, *, untraced: bool = False) -> dict[str, Any]:
        found = asyncio.run(take_turns((Way(PLAIN, off), other), load, given.rounds))
        print(f"{way}, {load.streams} at a time: done", file=sys.stderr, flush=True)
        return {"way": way, "bound": bound, **beside_plain(found, load, untraced=untraced)}

    if on is not None and "spans" in given.parts:
        load = Load(most, most, given.tokens)
        yield part(f"spans, {given.tokens} tokens a request", "1 % of tokens/s", load, Way(OTHER, on))
    if on is not None and "request" in given.parts:
        load = Load(most, given.requests, 1)
        yield part("spans, 1 token a request", "100 us a request", load, Way(OTHER, on))
    if "traced" in given.parts:
        for streams in given.streams:
            load = Load(streams, max(streams, FEWEST), given.tokens)
            yield part("traced", "3 % of tokens/s", load, Way(OTHER, off, load.requests))
    if "beside" in given.parts:
        load = Load(BESIDE, BESIDE, given.tokens)
        yield part("beside traced ones", "nothing", load, Way(OTHER, off, BESIDE // 2), untraced=True)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of the target model")
    parser.add_argument(
        "--draft", action="append", required=True, help="proposer, as of `slipstream serve`; the first drafts"
    )
    parser.add_argument("--device", default="cpu", help="of the services, as of `slipstream serve`")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 64], help="requests at a time")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--requests", type=int, default=512, help="short requests of a round")
    parser.add_argument("--rounds", type=int, default=8, help="rounds of each way")
    parser.add_argument("--turns", type=int, default=40, help="turns of each piece")
    parser.add_argument("--output", type=Path, help="write the figures as JSON; those of other parts in the file stay")
    return parser.parse_args(argv)


def services(given: argparse.Namespace, *, share: float = 0.4, **settings: Any) -> Cluster:
    """Services that take all requests at once, until `share` of a GPU's memory is taken, by whomsoever."""
    most = str(max(16, *given.streams))
    device = () if given.device == "cpu" else ("--device", given.device)
    memory = () if given.device == "cpu" else ("--gpu-memory-utilization", str(share))
    return Cluster(
        given.model,
        draft=given.draft,
        verify_args=("--draft-deadline-ms", "5000", "--max-running", most, *device, *memory),
        draft_args=device,
        gateway_args=("--max-traced-choices", most),
        **settings,
    )


def measure_services(given: argparse.Namespace) -> list[dict[str, Any]]:
    """All parts but the pieces."""
    with ExitStack() as stack:
        on = None
        if {"spans", "request"} & set(given.parts):
            endpoint, received = stack.enter_context(collector())
            on = stack.enter_context(services(given, env={"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}))
        parts = list(measure(given, stack.enter_context(services(given, share=0.8)), on))
        if on is not None and not received():
            raise SystemExit("the collector has received no span")
    return parts


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table."""
    given = arguments(argv)
    former = json.loads(given.output.read_text()) if given.output and given.output.exists() else {}
    pieces = measure_pieces(given.model, given.turns) if "pieces" in given.parts else former.get("pieces", {})
    parts = measure_services(given) if set(given.parts) - {"pieces"} else []
    measured = {(each["way"], each["streams"]) for each in parts}
    kept = [each for each in former.get("parts", ()) if (each["way"], each["streams"]) not in measured]
    facts = gpu_machine(given.device)
    content = {"pieces": pieces, "parts": kept + parts, "tokens": given.tokens, "machine": facts}
    if given.output:
        write_json(given.output, content)
    print(text(content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
