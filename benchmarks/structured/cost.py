r"""What a grammar costs and what it earns: the same requests free and held to one, drafted for and not.

    python -m benchmarks.structured.cost [--model DIR] [--head DIR] [--device cuda] [--concurrency N,...]

Rates: tokens a second of closed loops of tool calls and schemas, five ways in alternation, at T = 0; free answers come
from the same prompts and have as many tokens. Requests that are drafted for say nothing of speculation, so that rows
are drafted where they pay. Two servers share the machine, one of them without a drafter; the other has the EAGLE-3 head
in its process. Medians over rounds, ratios round by round.

Waits: what a crowd of requests that are all held to a grammar makes a step wait for drafts, checks and masks, as the
verify service counts it, as a share of the time of its steps; at T = 0, where tokens are checked first, and with top-p,
where each row is masked. `samples` is no wait: rows that a pass leaves to be sampled under masks are sampled behind it.

First use: new schemas under free streams, one after another: usual ones, which take 0.1 s to compile, dear ones of four
times the size, and hostile ones, which are refused when the time is over that a grammar may take. Told are the times to
the first token of their requests, first and again, and the longest gaps between tokens of the streams: while a request
of a new schema waited, for as long a time before it, and while the same request waited once more, so that whatever else
is at work on the machine is in all of them, and the prompt of the request in two.

Exit status 1 where calls held to a grammar that drafts are not 1.15 times as fast as free plain decoding at any
concurrency, or steps of the crowd wait for masks more than 2 % of their time, or gaps are longer by more than one step
in the median of a kind of schemas. --parts chooses what is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks.lib.report import gpu_machine, markdown_table, write_json
from benchmarks.lib.repository import DEMO_HEAD, DEMO_MODEL
from benchmarks.structured.answers import ask_all
from benchmarks.structured.cases import MODEL, Case, cases
from benchmarks.structured.first_use import KINDS, LONGER, first_use
from benchmarks.structured.matrix import TEMPLATE
from benchmarks.structured.rates import (
    FREE,
    FREE_DRAFTED,
    HELD,
    HELD_BOTH,
    HELD_DRAFTED,
    Rates,
    Way,
    body_of,
    closed_loop,
    measured,
)
from launcher.services.free_ports import free_ports
from launcher.supervision.cluster import Cluster

WANTED_RATIO: Final = 1.15
WANTED_SHARE: Final = 0.02
WANTED_GAPS: Final = 1.0
RATES, WAITS, FIRST_USE = "rates", "waits", "first-use"
PARTS: Final = (RATES, WAITS, FIRST_USE)
NAMES: Final = (FREE, HELD, HELD_DRAFTED, FREE_DRAFTED, HELD_BOTH)
_SAMPLE: Final = re.compile(
    r'^slipstream_(?:grammar_seconds_total\{part="(\w+)"\}|step_seconds_sum) (\S+)$', re.MULTILINE
)


def started(options: argparse.Namespace, metrics_port: int, *, drafter: bool) -> Cluster:
    """One of the two servers: with the head in its process, or without any drafter."""
    values: dict[str, object] = {
        "--model-name": MODEL,
        "--device": options.device,
        "--num-pages": options.pages,
        "--max-running": options.crowd,
        "--metrics-port": metrics_port,
        "--log-level": "warning",
    }
    return Cluster(
        options.model,
        draft=(f"inproc:eagle3:{options.head}:target={options.model}",) if drafter else (),
        verify_args=[str(part) for pair in values.items() for part in pair],
        gateway_args=("--chat-template", str(TEMPLATE), "--tool-call-parser", "hermes", "--log-level", "warning"),
    )


def tool_like(count: int, seed: int) -> list[Case]:
    """Calls that are forced, and some records by a schema: what a grammar knows something of."""
    found = cases(count, 2 * count, seed)
    calls = [case for case in found if case.kind in ("required call", "named call")]
    records = [case for case in found if case.kind in ("easy", "arguments", "event", "settings")]
    return [*calls[: count - count // 4], *records[: count // 4]]


def seconds_of(port: int) -> dict[str, float]:
    """Seconds of steps, and of grammars by part, as the verify service counts them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:  # its own port
        text = reply.read().decode()
    return {part or "steps": float(value) for part, value in _SAMPLE.findall(text)}


async def waits(way: Way, port: int, asked: Sequence[Case], law: str, options: argparse.Namespace) -> dict[str, Any]:
    """Shares of steps' time that a crowd of these requests waits for grammars."""
    bodies = [body_of(way, case.asked(law, options.tokens), 0, ()) for case in asked]
    await closed_loop(way.url, bodies, options.crowd)  # grammars are known from here on
    before = seconds_of(port)
    await closed_loop(way.url, bodies * 2, options.crowd)
    spent = {name: value - before[name] for name, value in seconds_of(port).items()}
    shares = {name: round(value / spent["steps"], 5) for name, value in spent.items() if name != "steps"}
    return {"T": law, "at once": options.crowd, "step seconds": round(spent["steps"], 2), "shares": shares}


async def _measure(options: argparse.Namespace) -> int:
    plain_port, drafter_port = free_ports(2)
    content: dict[str, Any] = {"machine": gpu_machine(options.device), "settings": _settings(options)}
    with ExitStack() as stack:
        plain = stack.enter_context(started(options, plain_port, drafter=False))
        ways = [
            Way(FREE, plain.http_url, held=False, drafted=False),
            Way(HELD, plain.http_url, held=True, drafted=False),
            Way(HELD_DRAFTED, plain.http_url, held=True, drafted=True),
        ]
        if options.drafter and {RATES, WAITS} & set(options.parts):
            drafter = stack.enter_context(started(options, drafter_port, drafter=True))
            ways += [
                Way(FREE_DRAFTED, drafter.http_url, held=False, drafted=True),
                Way(HELD_BOTH, drafter.http_url, held=True, drafted=True),
            ]
        ports = {plain.http_url: plain_port}
        for part in options.parts:
            if part == RATES:
                content[part] = {}
                for concurrency in options.concurrency:
                    content[part][str(concurrency)] = _document(await _rates(ways, concurrency, options))
                    _tell(options, content)
            elif part == WAITS:
                crowd = tool_like(2 * options.crowd, options.seed + 1)
                content[part] = [
                    {"way": way.name} | await waits(way, ports.get(way.url, drafter_port), crowd, law, options)
                    for way in ways
                    if way.held
                    for law in ("0", "1, top-p 0.9")
                ]
            else:
                content[part] = {}
                counts = options.streams, options.new_schemas, options.entries, options.seed
                for kind in KINDS:
                    content[part][kind] = (await first_use(plain.http_url, kind, *counts)).document()
                    _tell(options, content)
            _tell(options, content)
        content["failures"] = failures(content)
    _tell(options, content)
    return 1 if content["failures"] else 0


async def _rates(ways: Sequence[Way], concurrency: int, options: argparse.Namespace) -> Rates:
    """Tokens a second of all ways, at one concurrency."""
    asked = tool_like(max(options.requests, 2 * concurrency), options.seed)
    bodies = [case.asked("0", options.tokens) for case in asked]
    answers = await ask_all(ways[0].url, bodies, 8)
    pairs = [(body, answer.prompt_ids) for body, answer in zip(bodies, answers, strict=True)]
    return await measured(ways, pairs, concurrency, options.rounds)


def _document(rates: Rates) -> dict[str, Any]:
    return {
        "tokens a round": rates.tokens,
        "tokens a second": {name: round(rates.median(name), 1) for name in rates.rounds},
        "times free plain decoding": {name: round(rates.ratio(name, FREE), 3) for name in rates.rounds},
        "rounds": {name: [round(rate, 1) for rate in each] for name, each in rates.rounds.items()},
    }


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    paths = {"model": options.model.name, "head": options.head.name}
    names = ("requests", "tokens", "rounds", "crowd", "streams", "new_schemas", "entries", "seed", "device")
    return paths | {name: getattr(options, name) for name in names}


def failures(content: dict[str, Any]) -> list[str]:
    """What was wanted and is not so, in words."""
    found = []
    rates = content.get(RATES, {})
    ratios = {at: each["times free plain decoding"][HELD_DRAFTED] for at, each in rates.items()}
    if slow := {at: ratio for at, ratio in ratios.items() if ratio < WANTED_RATIO}:
        found.append(f"{HELD_DRAFTED}: {slow} times free plain decoding by concurrency, {WANTED_RATIO} are wanted")
    found += [
        f"{each['way']}, T={each['T']}: steps wait for masks {each['shares']['masks']:.1%} of their time"
        for each in content.get(WAITS, ())
        if each["shares"]["masks"] > WANTED_SHARE
    ]
    found += [
        f"a new schema, {kind}, delays others by {each[LONGER]} mean gaps"
        for kind, each in content.get(FIRST_USE, {}).items()
        if each[LONGER] > WANTED_GAPS
    ]
    return found


def _tell(options: argparse.Namespace, content: dict[str, Any]) -> None:
    """Print what is there, and write it."""
    if options.output:
        write_json(options.output, content)
    if "failures" not in content:
        return
    if rates := content.get(RATES):
        names = [name for name in NAMES if name in next(iter(rates.values()))["tokens a second"]]
        rows = [
            (at, *(each["tokens a second"][name] for name in names), each["times free plain decoding"][HELD_DRAFTED])
            for at, each in rates.items()
        ]
        print(markdown_table(("at once", *names, f"{HELD_DRAFTED} / {FREE}"), rows))
    if found := content.get(WAITS):
        parts = ("drafts", "checks", "masks", "samples")
        print("\nshares of steps' time that wait for grammars:")
        lines = [(each["way"], each["T"], each["at once"], *(f"{each['shares'][part]:.2%}" for part in parts))
                 for each in found]  # fmt: skip
        print(markdown_table(("way", "T", "at once", *parts), lines))
    for kind, each in content.get(FIRST_USE, {}).items():
        print(f"\nfirst use of {kind} schemas, ms:")
        print("\n".join(f"- {name}: {value}" for name, value in each.items()))
    print("\n".join(content["failures"]) or "all is as wanted")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and return the exit status: 0 where all is as wanted."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.structured.cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="target model (the demo model)")
    parser.add_argument("--head", type=Path, default=DEMO_HEAD, help="its EAGLE-3 head (the demo model's)")
    parser.add_argument("--device", default="cpu", help="where both run (cpu)")
    parser.add_argument("--parts", type=_parts, default=PARTS, metavar="NAME,...", help=f"of {', '.join(PARTS)} (all)")
    parser.add_argument(
        "--drafter", action=argparse.BooleanOptionalAction, default=True, help="a second server, with the head (yes)"
    )
    parser.add_argument("--concurrency", type=_numbers, default=(1, 8), metavar="N,...", help="closed loops (1,8)")
    parser.add_argument("--requests", type=int, default=32, help="of a round, at least two a client (32)")
    parser.add_argument("--tokens", type=int, default=96, help="the longest answer, in tokens (96)")
    parser.add_argument("--rounds", type=int, default=5, help="that are counted (5)")
    parser.add_argument("--crowd", type=int, default=64, help="requests at once whose waits are counted (64)")
    parser.add_argument("--streams", type=int, default=8, help="free streams beside new schemas (8)")
    parser.add_argument("--new-schemas", type=int, default=20, help="of each kind (20)")
    parser.add_argument("--entries", type=int, default=1000, help="of the enumeration of a usual one (1000)")
    parser.add_argument("--pages", type=int, default=4096, help="KV pages of each server (4096)")
    parser.add_argument("--seed", type=int, default=21, help="of schemas and prompts (21)")
    parser.add_argument("--output", type=Path, help="write the results as JSON, after each part")
    return asyncio.run(_measure(parser.parse_args(arguments)))


def _parts(text: str) -> tuple[str, ...]:
    parts = tuple(text.split(","))
    if unknown := set(parts) - set(PARTS):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: must be of {', '.join(PARTS)}")
    return parts


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
