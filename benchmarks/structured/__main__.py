r"""Compares structured answers and calls bit for bit across proposers, laws of sampling and concurrency.

    python -m benchmarks.structured [--schemas N] [--tools N] [--kills N] [--parts N] [--output FILE]
    python -m benchmarks.structured --after N --add FILE [--output FILE]

The reference is plain constrained decoding: no speculation, one request at a time. Each answer is compared in ids,
text, calls and finish reason, and each one that came to its end is validated with jsonschema. Everything goes through
real services over HTTP. The verify service without drafters is killed under streams of the first part, again and again,
and their bytes are compared, while those with drafters do their cells.

Prompts are done in parts, each under all cells, so that a grammar is compiled few times; a part that is done is kept in
benchmarks/out and not done again for the same model and options; --fresh forgets it. Behind a run of the first N
parts, with its results in FILE, `--after N --add FILE` does the others, and sums both up. Exit status 1 where anything
differs, does not fit, was not drafted for, or was not interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.lib.continuations import continuation_key, write_continuations
from benchmarks.lib.report import machine, markdown_table, write_json
from benchmarks.lib.repository import DEMO_MODEL, ROOT
from benchmarks.structured.answers import Answer, ask_all
from benchmarks.structured.cases import TEMPERATURES, Case, cases
from benchmarks.structured.kills import Kills, kill_in_the_middle
from benchmarks.structured.matrix import (
    CONCURRENCIES,
    DRAFTED,
    GRAMMAR,
    HEADER,
    NONE,
    PROPOSERS,
    Count,
    row,
    speculation,
    started,
)
from launcher.services.process import Spawner
from launcher.supervision.cluster import Cluster

PART = 50
"""Requests at a time: fewer than the grammars that a verify service keeps."""
LONG_ENOUGH = 12
"""Tokens of an answer that is worth interrupting."""

Key = tuple[str, str, int]
"""Proposer, law and concurrency of a cell."""
CELLS: list[Key] = list(product(PROPOSERS, TEMPERATURES, CONCURRENCIES))
Reference = dict[tuple[str, str], Answer]
"""Answers by the names of case and law."""


class Run:
    """One run over one model. `parts` are the cells of each part that is done."""

    def __init__(self, options: argparse.Namespace, spawner: Spawner | None = None) -> None:
        self._spawner = spawner
        self.model: Path = options.model.resolve()
        self.tokens: int = options.tokens
        self.seed: int = options.seed
        self.cases = cases(options.schemas, options.tools, options.seed)
        weights = b"".join(
            hashlib.sha256(path.read_bytes()).digest() for path in sorted(self.model.glob("*.safetensors"))
        )
        asked = json.dumps([case.asked(law, self.tokens) for case in self.cases for law in TEMPERATURES])
        name = hashlib.sha256(weights + asked.encode()).hexdigest()[:16]
        self.folder = ROOT / "benchmarks" / "out" / "structured" / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.parts = [self.cases[first : first + PART] for first in range(0, len(self.cases), PART)]

    async def part(self, number: int, kills: int = 0) -> tuple[dict[str, Any], Kills]:
        """What comparing one part yields: counts by cell, and the answers of the reference; and so many kills.

        The services without a drafter are killed while those with drafters do their cells.
        """
        part, cells = self.parts[number], {}
        with started(self.model, spawner=self._spawner) as plain:
            reference = await self._reference(plain, part)
            for cell in product((NONE, GRAMMAR), TEMPERATURES, CONCURRENCIES):
                cells[cell] = await self._cell(plain, part, reference, *cell)
            with started(self.model, self._oracle(part, reference), self._spawner) as drafted:
                async with asyncio.TaskGroup() as group:
                    killed = group.create_task(self._killed(plain, part, reference, kills))
                    for cell in product(DRAFTED, TEMPERATURES, CONCURRENCIES):
                        cells[cell] = await self._cell(drafted, part, reference, *cell)
        content = {
            "cells": [[*cell, asdict(each)] for cell, each in cells.items()],
            "reference": [[*key, asdict(answer)] for key, answer in reference.items()],
        }
        return content, killed.result()

    async def _reference(self, cluster: Cluster, part: Sequence[Case]) -> Reference:
        reference: Reference = {}
        for law in TEMPERATURES:
            bodies = [case.asked(law, self.tokens) | speculation(NONE) for case in part]
            for case, answer in zip(part, await ask_all(cluster.http_url, bodies, 1), strict=True):
                reference[case.name, law] = answer
        return reference

    async def _cell(
        self, cluster: Cluster, part: Sequence[Case], reference: Reference, proposer: str, law: str, concurrency: int
    ) -> Count:
        count = Count()
        bodies = [case.asked(law, self.tokens) | speculation(proposer) for case in part]
        with tqdm(total=len(part), desc=f"{proposer} T={law} x{concurrency}", leave=False, disable=None) as bar:
            answers = await ask_all(cluster.http_url, bodies, concurrency, bar.update)
        for case, answer in zip(part, answers, strict=True):
            count.add(case, answer, reference[case.name, law])
        return count

    def _oracle(self, part: Sequence[Case], reference: Reference) -> Path:
        path = self.folder / "oracle.json"
        known = {}
        for case, law in product(part, TEMPERATURES):
            body, answer = case.asked(law, self.tokens), reference[case.name, law]
            known[continuation_key(answer.prompt_ids, body["temperature"], body["seed"])] = answer.token_ids
        write_continuations(path, known)
        return path

    async def kills(self, number: int, reference: Reference, kills: int) -> Kills:
        """The kills of a part whose cells were done before."""
        with started(self.model, spawner=self._spawner) as cluster:
            return await self._killed(cluster, self.parts[number], reference, kills)

    async def _killed(self, cluster: Cluster, part: Sequence[Case], reference: Reference, kills: int) -> Kills:
        """Kill the verify service so many times, each time under other streams."""
        asked = [
            (case, case.asked(law, self.tokens) | speculation(GRAMMAR), answer)
            for case, law in product(part, TEMPERATURES)
            if len((answer := reference[case.name, law]).token_ids) >= LONG_ENOUGH
        ]
        return await kill_in_the_middle(cluster, asked, kills, self.seed)


async def _measure(options: argparse.Namespace, added: dict[str, Any] | None, spawner: Spawner | None) -> int:
    start, run = time.perf_counter(), Run(options, spawner)
    counts: dict[Key, list[Count]] = {}
    kills = Kills()
    if added is not None:
        kills = Kills(**added["kills"])
        counts = {cell: [Count(**added["cells"][_name(*cell)])] for cell in CELLS}
    last = min(len(run.parts), options.parts or len(run.parts))
    for number in range(options.after, last):
        path, kills_path = run.folder / f"part-{number}.json", run.folder / f"kills-{options.kills}.json"
        wanted = options.kills if number == 0 else 0
        due = wanted if options.fresh or not kills_path.exists() else 0
        if options.fresh or not path.exists():
            content, killed = await run.part(number, due)
            write_json(path, content)
            print(
                f"part {number + 1} of {len(run.parts)} is done after {time.perf_counter() - start:.0f} s", flush=True
            )
        else:
            content = json.loads(path.read_text("utf-8"))
            killed = await run.kills(number, _read_reference(content), due) if due else Kills()
        if due:
            write_json(kills_path, asdict(killed))
        if wanted:
            kills = Kills(**json.loads(kills_path.read_text("utf-8")))
        for proposer, law, concurrency, count in content["cells"]:
            counts.setdefault((proposer, law, concurrency), []).append(Count(**count))
    totals = {cell: Count.total(counts[cell]) for cell in CELLS}
    rows = [row(*cell, count) for cell, count in totals.items()]
    failures = _failures(totals, kills, options.kills if added is not None or not options.after else 0)
    print(markdown_table(HEADER, rows))
    print(
        f"\n{kills.kills} kills of the verify service interrupted {kills.interrupted} streams, "
        f"of which {kills.differences} differ"
    )
    print("\n".join(failures) or "exact: every answer is the reference's, and every finished one fits its schema")
    if options.output:
        content = {
            "machine": machine(),
            "settings": {**_asked(options), "after": options.after, "parts": last,
                         "seconds": round(time.perf_counter() - start)},
            "added": added and {key: added[key] for key in ("machine", "settings")},
            "cells": {_name(*cell): asdict(count) for cell, count in totals.items()},
            "kills": asdict(kills),
            "failures": failures,
        }  # fmt: skip
        write_json(options.output, content)
    return 1 if failures else 0


def _name(proposer: str, law: str, concurrency: int) -> str:
    """What a cell is called in results."""
    return f"{proposer}; T={law}; {concurrency} at once"


def _asked(options: argparse.Namespace) -> dict[str, Any]:
    """What runs have to agree in for their parts to be added."""
    return {
        "schemas": options.schemas,
        "tools": options.tools,
        "tokens": options.tokens,
        "seed": options.seed,
        "model": options.model.resolve().name,
    }


def _added(options: argparse.Namespace) -> dict[str, Any] | None:
    """The results of the run to be added. ValueError where they are not of the parts that this run leaves out."""
    if options.add is None:
        return None
    content: dict[str, Any] = json.loads(options.add.read_text("utf-8"))
    settings = content["settings"]
    wanted = {**_asked(options), "after": 0, "parts": options.after}
    if any(settings.get(key, value) != value for key, value in wanted.items()):
        raise ValueError(f"{options.add} is not of the first {options.after} parts of this run: {settings}")
    return content


def _read_reference(content: dict[str, Any]) -> Reference:
    """The answers of a part that was kept."""
    return {(name, law): _read_answer(answer) for name, law, answer in content["reference"]}


def _read_answer(fields: dict[str, Any]) -> Answer:
    lists = {key: tuple(fields[key]) for key in ("token_ids", "prompt_ids")}
    return Answer(**{**fields, **lists, "calls": tuple((name, arguments) for name, arguments in fields["calls"])})


def _failures(totals: dict[Key, Count], kills: Kills, wanted: int) -> list[str]:
    """What keeps the run from showing exactness, in words."""
    found = []
    for (proposer, law, concurrency), count in totals.items():
        name = f"{proposer}, T={law}, {concurrency} at once"
        if count.differences or count.misfits:
            found.append(f"{name}: {count.differences} differences, {count.misfits} misfits: {count.shown}")
        if not count.finished:
            found.append(f"{name}: no answer came to its end")
        if proposer == NONE and count.drafted:
            found.append(f"{name}: something was drafted")
        if proposer not in (NONE, "random") and not count.accepted:
            found.append(f"{name}: nothing that was drafted was accepted")
    if kills.differences:
        found.append(f"{kills.differences} streams differ that were interrupted")
    if wanted and kills.interrupted < wanted:
        found.append(f"{wanted} kills interrupted {kills.interrupted} streams")
    return found


def main(arguments: Sequence[str] | None = None, spawner: Spawner | None = None) -> int:
    """Run and return the exit status: 0 where every answer is exact and fits. `spawner` starts the services."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.structured", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="target model")
    parser.add_argument("--schemas", type=int, default=250, help="answers that have to fit a schema (250)")
    parser.add_argument("--tools", type=int, default=100, help="prompts with tools (100)")
    parser.add_argument("--tokens", type=int, default=64, help="the longest answer, in tokens (64)")
    parser.add_argument("--kills", type=int, default=20, help="times that the verify service is killed (20)")
    parser.add_argument("--parts", type=int, help=f"stop after so many parts of {PART} requests; the next run goes on")
    parser.add_argument("--after", type=int, default=0, help="leave so many parts out, and kill nothing")
    parser.add_argument("--add", type=Path, help="results of a run of the parts left out, to which these are added")
    parser.add_argument("--seed", type=int, default=21, help="of schemas, prompts and noise (21)")
    parser.add_argument("--fresh", action="store_true", help="forget parts of former runs")
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    options = parser.parse_args(arguments)
    try:
        added = _added(options)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return asyncio.run(_measure(options, added, spawner))


if __name__ == "__main__":
    sys.exit(main())
