"""Acceptance length, tokens a second and draft time of proposers, on real services, and the best settings.

    python -m benchmarks.proposers --prompts DIR [--set NAME | --draft SPEC ...] [--workloads ...] [--output FILE]
    python -m benchmarks.proposers --prompts DIR --search [--draft SPEC ...] [--steps 2,4] [--topk 1,4] [--rows 8,16]

DIR holds the prompt files (`workloads`). All proposers are hosted by one draft service; every setting answers the
same prompts. With --search the settings are candidates, most of which drop out early, and the arguments to start the
services with are printed in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.lib.report import machine, write_json
from benchmarks.lib.repository import DEMO_DRAFT_MODEL, DEMO_HEAD, DEMO_MODEL
from benchmarks.proposers import plot, tables
from benchmarks.proposers.runs import PLAIN, Bench, Cell, Prompts, Setting, services
from benchmarks.proposers.search import Grid, Search, candidates
from benchmarks.proposers.tables import ALL_WORKLOADS
from benchmarks.proposers.workloads import AGENTIC, MIXED, WORKLOADS, Row, load_rows
from launcher.services.commands import proposer_name
from launcher.supervision.cluster import Cluster

_MODEL = "draft_service.proposers.draft_model:create:{draft}"
_GREEDY = "benchmarks.proposers.uncoupled:create:draft-model:{draft}"
_CHAIN = ":num_steps=4:topk=1"
_TREE = ":num_steps=4:topk=4:num_draft_tokens=16"
_HEAD = "eagle3:{head}:target={model}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Proposers to compare, and on what by default.

    In their arguments "{draft}", "{head}" and "{model}" stand for the folders of draft model, head and target.
    """

    draft: tuple[str, ...]
    workloads: tuple[str, ...]
    temperatures: tuple[float, ...]
    plain: bool = True
    max_nodes: int | None = None


SETS: dict[str, Comparison] = {
    "proposers": Comparison(
        ("draft-model:{draft}" + _TREE, _HEAD + _TREE, "ngram:num_draft_tokens=16:num_steps=15", "suffix", "hybrid"),
        ("spec-bench", *AGENTIC, MIXED),
        (0.0, 1.0),
        max_nodes=16,
    ),
    "acceptance": Comparison(
        (f"chain={_MODEL}{_CHAIN}", f"tree={_MODEL}{_TREE}", "ngram"),
        ("spec-bench", "in-domain"),
        (0.0, 0.8),
        plain=False,
    ),
    "coupling": Comparison(
        (
            f"chain={_MODEL}{_CHAIN}",
            f"chain{tables.UNCOUPLED}={_GREEDY}{_CHAIN}",
            f"tree={_MODEL}{_TREE}",
            f"tree{tables.UNCOUPLED}={_GREEDY}{_TREE}",
        ),
        ("spec-bench",),
        (1.0,),
        plain=False,
    ),
}
SHOWN = {"proposers": tables.proposers, "acceptance": tables.acceptance,
         "coupling": tables.coupling}  # fmt: skip


async def compare(
    options: argparse.Namespace, rows: Sequence[Row], settings: Sequence[Setting]
) -> list[dict[str, Any]]:
    """A cell for each row, temperature and setting, and their sums by workload and over all."""
    cells: dict[tuple[str, str, float, str], Cell] = {}
    total = sum(len(row.prompts) for row in rows) * len(settings) * len(options.temperatures)
    async with _services(options, options.draft) as bench:
        with tqdm(total=total, desc="answers", smoothing=0.05, mininterval=1.0) as bar:
            for row in rows:
                prompts = await _prompts(bench, [row])
                for temperature in options.temperatures:
                    for setting in settings:
                        bar.set_postfix_str(f"{row.workload}: {setting.name}, T={temperature:g}")
                        cell = await bench.measure(
                            setting,
                            prompts,
                            tokens=options.tokens,
                            temperature=temperature,
                            concurrency=options.concurrency,
                            done=bar.update,
                        )
                        places = [(row.workload, row.category)]
                        places += [(row.workload, "all")] if row.category != "all" else []
                        places += [(ALL_WORKLOADS, "all")] if row.workload != MIXED else []
                        for place in places:
                            cells.setdefault((*place, temperature, setting.name), Cell()).add(cell)
    if len({row.workload for row in rows} - {MIXED}) == 1:
        cells = {key: cell for key, cell in cells.items() if key[0] != ALL_WORKLOADS}
    keys = ("workload", "category", "temperature", "setting")
    order = [*dict.fromkeys(row.workload for row in rows if row.workload != MIXED), MIXED, ALL_WORKLOADS]
    ordered = sorted(cells, key=lambda key: (order.index(key[0]), key[1] == "all"))
    return [dict(zip(keys, key, strict=True)) | cells[key].to_json() for key in ordered]


async def search(options: argparse.Namespace, rows: Sequence[Row]) -> dict[str, Any]:
    """Every candidate's figures, and the best arguments."""
    grid = Grid(steps=options.steps, topk=options.topk, rows=options.rows)
    hosted, possible = candidates(options.draft, grid)
    async with _services(options, hosted) as bench:
        prompts = await _prompts(bench, rows)
        race = Search(bench, options.objective, options.tokens, options.temperatures[0], options.concurrency)
        with tqdm(desc="answers", mininterval=1.0) as bar:
            await race.run(possible, prompts, seconds=options.seconds, done=bar.update)
    return {"rows": race.table(), "best": race.best()}


def _services(options: argparse.Namespace, draft: Sequence[str]) -> AbstractAsyncContextManager[Bench]:
    def cluster(needed: tuple[str, ...]) -> Cluster:
        pages = ("--num-pages", str(options.pages)) if options.pages else ()
        deadline = ("--draft-deadline-ms", str(options.draft_deadline_ms), "--log-level", "warning")
        verify_args = (*needed, *deadline, *pages, *options.verify_arg)
        return Cluster(options.model, draft=tuple(draft), verify_args=verify_args, draft_args=options.draft_arg)

    return services(cluster)


async def _prompts(bench: Bench, rows: Sequence[Row]) -> Prompts:
    return await bench.runner.tokenize([prompt for row in rows for prompt in row.prompts])


async def _measure(options: argparse.Namespace) -> int:
    start = time.perf_counter()
    facts = machine()
    rows = load_rows(options.prompts, options.workloads, options.limit or sys.maxsize, options.longest)
    if options.search:
        content = await search(options, rows)
    else:
        plain = [PLAIN] if options.plain else []
        limits = (options.max_nodes, options.max_depth)
        settings = [*plain, *(Setting(name, name, *limits) for name in map(proposer_name, options.draft))]
        content = {"cells": await compare(options, rows, settings)}
    kept = ("limit", "tokens", "concurrency", "max_nodes", "max_depth", "longest", "workloads")
    given = {name: getattr(options, name) for name in kept} | {"seconds": round(time.perf_counter() - start)}
    content = {"machine": facts, "settings": given} | content
    print((tables.search if options.search else SHOWN[options.set])(content))
    if options.output:
        write_json(options.output, content)
    if options.plot:
        (plot.plot_search if options.search else plot.plot_acceptance)(options.plot, content)
    return 0


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options, with the set's own choices where nothing else was said."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proposers", description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    add("--prompts", type=Path, required=True, help="folder of the prompt files")
    add("--set", choices=SETS, default="proposers", help="what is compared, and how it is shown (proposers)")
    add("--draft", action="append", metavar="SPEC", help="proposers in place of the set's, as for the draft service")
    add("--workloads", nargs="+", choices=[*WORKLOADS, MIXED], help="in place of the set's")
    add("--temperatures", nargs="+", type=float, help="in place of the set's; --search takes the first")
    add("--model", type=Path, default=DEMO_MODEL, help="target model")
    add("--draft-model", type=Path, default=DEMO_DRAFT_MODEL, help="draft model of the sets")
    add("--head", type=Path, default=DEMO_HEAD, help="EAGLE-3 head of the sets")
    add("--limit", type=int, help="prompts of each row of the tables; default: all")
    add("--longest", type=int, default=8000, help="characters of the longest prompt (8000)")
    add("--tokens", type=int, default=64, help="longest answer (64)")
    add("--concurrency", type=int, default=1, help="requests in flight (1)")
    add("--max-nodes", type=int, help="rows of every tree, root included")
    add("--max-depth", type=int, help="longest path of every tree")
    add("--draft-deadline-ms", type=float, default=5000.0, help="how long a verify step may wait for trees (5000)")
    add("--pages", type=int, default=24_576, help="KV pages, 0: the verify service's choice (24576)")
    add("--verify-arg", action="append", default=[], help="passed to the verify service")
    add("--draft-arg", action="append", default=[], help="passed to the draft service")
    add("--search", action="store_true", help="find the best settings")
    add("--objective", choices=("speed", "acceptance"), default="speed", help="what the best ones are best at (speed)")
    add("--steps", type=_numbers, default=(2, 4, 6), help="longest paths to try (2,4,6)")
    add("--topk", type=_numbers, default=(1, 4), help="children a node to try (1,4)")
    add("--rows", type=_numbers, default=(4, 8, 16, 32), help="rows of trees to try, root included (4,8,16,32)")
    add("--seconds", type=float, default=600.0, help="when the search takes what it has (600)")
    add("--output", type=Path, help="write the results as JSON")
    add("--plot", type=Path, help="write a picture")
    options = parser.parse_args(arguments)
    chosen = SETS[options.set]
    options.plain = chosen.plain
    folders = {"draft": options.draft_model, "head": options.head, "model": options.model}
    options.draft = [spec.format(**folders) for spec in options.draft or chosen.draft]
    options.workloads = options.workloads or list(chosen.workloads)
    options.temperatures = options.temperatures or list(chosen.temperatures)
    options.max_nodes = options.max_nodes or chosen.max_nodes
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status says nothing about the figures."""
    return asyncio.run(_measure(parsed(arguments)))


if __name__ == "__main__":
    sys.exit(main())
