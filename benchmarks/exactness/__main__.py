"""Compares served tokens bit for bit across proposers, temperatures, concurrency and engine settings.

    python -m benchmarks.exactness --prompts spec_bench_question.jsonl [--limit N] [--quick] [--output FILE]

The reference is one plain run: no drafter, whole-prompt prefill, no prefix cache, one request at a time; with
--adapters one of each adapter by itself, and of the model on services that know no adapters. Every cell
goes through real services: gateway, verify and draft, over gRPC. Finished cells are kept in benchmarks/out and not
run again for the same model and prompts; --fresh forgets them.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

from tqdm import tqdm

from benchmarks.exactness import cells
from benchmarks.exactness.cases import SEED, Case, make_cases
from benchmarks.exactness.cells import PLAIN, Axes, Cell, Count, EngineSetting
from benchmarks.lib.continuations import continuation_key, write_continuations
from benchmarks.lib.prompts import load_prompts
from benchmarks.lib.random_adapter import write_random_adapter
from benchmarks.lib.report import machine, markdown_table, write_json
from benchmarks.lib.repository import DEMO_DRAFT_MODEL, DEMO_MODEL, ROOT
from benchmarks.lib.runner import Answer, Runner, connect, verify_state
from benchmarks.lib.server_process import with_test_modules
from launcher.supervision.cluster import Cluster
from slipstream_kernels.models.kv_dtype import KV_DTYPES

ORACLE_MINIMUM = 6.0
ADAPTED_TEMPERATURES = (0.0, 1.0)
WIDE, WIDE_CROSSED = (1, 8, 64), (8, 64)
"""Concurrencies with adapters or where --wide asks for them, and those under engine settings."""
ADAPTER_RANKS = (8, 64, 16, 32)
ADAPTER_STRENGTH = 0.3
"""What adapters add, beside the layers' own outputs: another text, of which drafters still guess some."""


class Exactness:
    """One run over one model and one set of prompts. Results gather in a file as cells finish."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.model: Path = options.model
        self.tokens: int = options.tokens
        content = options.prompts.read_bytes() + (self.model / "config.json").read_bytes()
        weights = b"".join(
            hashlib.sha256(path.read_bytes()).digest() for path in sorted(self.model.glob("*.safetensors"))
        )
        names = (*cells.PROPOSERS, *(spec.partition(":")[0].partition("=")[0] for spec in options.proposer))
        axes = Axes(names, ADAPTED_TEMPERATURES, WIDE, WIDE_CROSSED) if options.adapters else Axes(names)
        self.axes = replace(axes, concurrencies=WIDE, crossed=WIDE_CROSSED) if options.wide else axes
        more = [f"{options.adapters} adapters"] if options.adapters else []
        more += ["wide"] * options.wide
        more += [f"keys and values in {options.kv_cache_dtype}"] if options.kv_cache_dtype != "auto" else []
        more += options.verify_args
        chosen = " ".join([f"{options.limit} {self.tokens}", *options.proposer, *more])
        name = hashlib.sha256(content + weights + chosen.encode()).hexdigest()[:16]
        self.folder = ROOT / "benchmarks" / "out" / "exactness" / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.prompts = load_prompts(options.prompts, limit=options.limit)
        self.adapters = {
            f"adapter-{index}": write_random_adapter(
                self.folder / f"adapter-{index}",
                self.model,
                seed=SEED + index,
                rank=ADAPTER_RANKS[index % len(ADAPTER_RANKS)],
                strength=ADAPTER_STRENGTH,
            )
            for index in range(options.adapters)
        }
        self.cases: list[Case] = []
        self.reference: dict[tuple[str, float], Answer] = {}

    # --- Reference ---

    async def refer(self) -> None:
        """Token ids of all prompts and the reference answers, from the file or from a plain run."""
        path = self.folder / "reference.json"
        if path.exists() and not self.options.fresh:
            self._read_reference(json.loads(path.read_text(encoding="utf-8")))
            return
        whole = EngineSetting(prefill_chunk=4096, prefix_cache=False)
        for adapter in ("", *self.adapters):  # each by itself, the model on services that know no adapters
            held = {adapter: self.adapters[adapter]} if adapter else {}
            with self._cluster(whole, num_pages=512, proposers=(), adapters=held) as cluster:
                async with connect(cluster.gateway_grpc) as runner:
                    if not self.cases:
                        self.cases = self._cases(await runner.tokenize(self.prompts))
                    asked = [case for case in self.cases if case.adapter == adapter]
                    for temperature in self.axes.temperatures:
                        jobs = [case.job(temperature, self.tokens) for case in asked]
                        with _bar(len(jobs), f"reference {adapter} T={temperature:g}") as bar:
                            answers = await runner.run(jobs, 1, bar.update)
                        for case, answer in zip(asked, answers, strict=True):
                            self.reference[case.name, temperature] = answer
        answers_json = [[name, t, asdict(answer)] for (name, t), answer in self.reference.items()]
        ids = {case.prompt.name: case.ids for case in self.cases}
        write_json(path, {"ids": [ids[prompt.name] for prompt in self.prompts], "answers": answers_json})

    def _cases(self, ids: Sequence[tuple[int, ...]]) -> list[Case]:
        return make_cases(self.prompts, ids, quick=self.options.quick, adapters=tuple(self.adapters))

    def _read_reference(self, content: dict[str, Any]) -> None:
        self.cases = self._cases([tuple(ids) for ids in content["ids"]])
        for name, temperature, fields in content["answers"]:
            lists = {key: tuple(value) for key, value in fields.items() if isinstance(value, list)}
            self.reference[name, temperature] = Answer(**{**fields, **lists})

    def _write_oracle(self) -> Path:
        path = self.folder / "oracle.json"
        known = {
            continuation_key(case.ids, temperature, case.seed, case.adapter): self.reference[
                case.name, temperature
            ].token_ids
            for case in self.cases
            for temperature in self.axes.temperatures
        }
        write_continuations(path, known)
        return path

    # --- Cells ---

    async def run_main(self) -> list[tuple[str, Count]]:
        """All prompts under each proposer, temperature and concurrency, on one set of services."""
        engine = EngineSetting()
        plan = cells.combinations(engine, self.axes)
        missing = [cell for cell in plan if self._stored(cell.name) is None]
        pages = sum(-(-(len(case.ids) + 1) // engine.page_size) for case in self.cases) + 1024
        if missing:
            with self._cluster(engine, pages, self._proposers()) as cluster:
                async with connect(cluster.gateway_grpc) as runner:
                    with _bar(len(missing) * len(self.cases), "main") as bar:
                        for cell in missing:
                            bar.set_postfix_str(f"{cell.proposer} T={cell.temperature:g} x{cell.concurrency}")
                            work = [(case, cell) for case in self.cases]
                            await self._run_cells(runner, work, cell.concurrency, bar.update)
        return [(cell.name, self._known(cell.name)) for cell in plan]

    async def run_cross(self) -> list[tuple[str, Count]]:
        """The crossed prompts under every engine setting; all proposers and temperatures share each batch."""
        settings = cells.cross_settings(quick=self.options.quick)
        crossed = [case for case in self.cases if case.crossed]
        results: list[tuple[str, Count]] = []
        plan = cells.combinations(settings[0], self.axes, crossed=True)
        with _bar(len(settings) * len(plan) * len(crossed), "cross") as bar:
            for engine in settings:
                plan = cells.combinations(engine, self.axes, crossed=True)
                names = [cell.name for cell in plan]
                bar.set_postfix_str(engine.name)
                if any(self._stored(name) is None for name in names):
                    with self._cluster(engine, self._pages(engine, crossed), self._proposers()) as cluster:
                        async with connect(cluster.gateway_grpc) as runner:
                            for concurrency in self.axes.crossed:
                                chosen = [cell for cell in plan if cell.concurrency == concurrency]
                                work = [(case, cell) for case in crossed for cell in chosen]
                                Random(SEED).shuffle(work)  # long and short prompts meet
                                await self._run_cells(runner, work, concurrency, bar.update)
                        self._store_preemptions(engine, int(verify_state(cluster.verify_address).preemptions))
                else:
                    bar.update(len(plan) * len(crossed))
                results.extend((name, self._known(name)) for name in names)
        return results

    async def _run_cells(
        self, runner: Runner, work: Sequence[tuple[Case, Cell]], concurrency: int, done: Callable[[], object]
    ) -> None:
        jobs = [case.job(cell.temperature, self.tokens, cell.proposer) for case, cell in work]
        answers = await runner.run(jobs, concurrency, done)
        counts: dict[str, Count] = {}
        for (case, cell), answer in zip(work, answers, strict=True):
            count = counts.setdefault(cell.name, Count())
            count.add(case.name, answer, self.reference[case.name, cell.temperature])
        path = self.folder / "cells.json"
        write_json(path, self._cells_file() | {name: count.to_json() for name, count in counts.items()})

    def _pages(self, engine: EngineSetting, crossed: Sequence[Case]) -> int:
        """Pages for little more than the longest request where preemption is wanted, else for all prompts at once."""
        lengths = sorted(len(case.ids) + self.tokens + 1 for case in crossed)
        if engine.scarce:
            return -(-lengths[-1] * 9 // 8 // engine.page_size) + 1
        return sum(-(-length // engine.page_size) for length in lengths) + 8 * -(-lengths[-1] // engine.page_size)

    # --- Services ---

    def _proposers(self) -> tuple[str, ...]:
        return (
            f"draft-model:{self.options.draft}",
            "ngram",
            "random-tree=support.proposers:random_tree",
            f"oracle=support.proposers:oracle:{self._write_oracle()}",
            *self.options.proposer,
        )

    def _cluster(
        self,
        engine: EngineSetting,
        num_pages: int,
        proposers: Sequence[str],
        adapters: Mapping[str, Path] | None = None,
    ) -> Cluster:
        # Trees are given time to arrive: what is tested is what trees do, not how fast they come.
        verify_args = [*engine.verify_args(num_pages), "--draft-deadline-ms", "250", "--log-level", "warning"]
        verify_args += ["--kv-cache-dtype", self.options.kv_cache_dtype]
        if max(self.axes.concurrencies) > max(Axes().concurrencies):
            verify_args += ["--max-running", str(max(self.axes.concurrencies))]
        for name, folder in (self.adapters if adapters is None else adapters).items():
            verify_args += ["--lora-modules", f"{name}={folder}"]
        if self.adapters:
            verify_args += ["--max-lora-rank", str(max(ADAPTER_RANKS))]
        verify_args += self.options.verify_args
        return Cluster(self.model, draft=proposers, verify_args=verify_args, env=with_test_modules())

    # --- Results ---

    def _cells_file(self) -> dict[str, Any]:
        path = self.folder / "cells.json"
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return content

    def _stored(self, name: str) -> Count | None:
        content = self._cells_file().get(name)
        return None if content is None else Count.from_json(content)

    def _known(self, name: str) -> Count:
        count = self._stored(name)
        assert count is not None, name
        return count

    def _store_preemptions(self, engine: EngineSetting, preemptions: int) -> None:
        write_json(self.folder / "cells.json", self._cells_file() | {f"preemptions; {engine.name}": preemptions})

    def preemptions(self, engine: EngineSetting) -> int:
        """Preemptions that the verify service counted under this setting."""
        return int(self._cells_file().get(f"preemptions; {engine.name}", 0))

    def adapted(self) -> dict[str, dict[str, int]]:
        """By adapter: reference answers, and how many of them are others than the model's alone."""
        plain = {case.prompt.name: case.name for case in self.cases if not case.adapter}
        counts = {name: {"answers": 0, "changed": 0} for name in self.adapters}
        for case in self.cases:
            for temperature in self.axes.temperatures if case.adapter else ():
                own, alone = (self.reference[name, temperature] for name in (case.name, plain[case.prompt.name]))
                counts[case.adapter]["answers"] += 1
                counts[case.adapter]["changed"] += own.token_ids != alone.token_ids
        return counts


def _bar(total: int, label: str) -> tqdm[Any]:
    return tqdm(total=total, desc=label, unit="req", smoothing=0.05, mininterval=1.0, dynamic_ncols=True)


def _failures(run: Exactness, main: Sequence[tuple[str, Count]], cross: Sequence[tuple[str, Count]]) -> list[str]:
    """What keeps the run from showing exactness, in words."""
    results = [*main, *cross]
    found = [f"{name}: {c.mismatches} mismatches {c.differences}" for name, c in results if c.mismatches]
    found += [f"{name}: {c.logprob_mismatches} logprob mismatches" for name, c in results if c.logprob_mismatches]
    for name, count in _summary(run.axes.proposers, main, cross):
        proposer = name.rpartition(" ")[2]
        if proposer in ("draft-model", "ngram") and not count.accepted:
            found.append(f"{name}: nothing was accepted")
        if proposer != PLAIN and not count.drafted:
            found.append(f"{name}: nothing was drafted")
    found += [
        f"{name}: logprobs of {c.logprobs_compared} of {c.requests} requests compared"
        for name, c in cross
        if c.logprobs_compared != c.requests
    ]
    oracle = cells.total(c for name, c in results if "; oracle;" in name)
    if oracle.requests and oracle.acceptance_length <= ORACLE_MINIMUM:
        found.append(f"oracle: {oracle.acceptance_length:.2f} tokens a step, must be above {ORACLE_MINIMUM:g}")
    found += [f"{name}: all answers are the model's own" for name, c in run.adapted().items() if not c["changed"]]
    if cross:
        scarce = [engine for engine in cells.cross_settings(quick=run.options.quick) if engine.scarce]
        idle = [engine for engine in scarce if run.preemptions(engine) == 0]
        # With adapters so few prompts are crossed that none of them may cross a border between large pages.
        if idle and not (run.adapters and len(idle) < len(scarce)):
            found += [f"{engine.name}: nothing was preempted" for engine in idle]
    return found


async def _measure(options: argparse.Namespace) -> int:
    start = time.perf_counter()
    run = Exactness(options)
    if options.fresh:
        (run.folder / "cells.json").unlink(missing_ok=True)
    await run.refer()
    main = await run.run_main() if options.part in ("all", "main") else []
    cross = await run.run_cross() if options.part in ("all", "cross") else []
    summary = _summary(run.axes.proposers, main, cross)
    failures = _failures(run, main, cross)
    if main:
        print(markdown_table(cells.HEADER, cells.rows(main)))
    print(markdown_table(cells.HEADER, cells.rows(summary)))
    print("\n".join(failures) or "exact: every answer is the reference's, bit for bit")
    if options.output:
        settings = {
            "prompts": len(run.prompts),
            "tokens": options.tokens,
            "crossed": len({c.prompt.name for c in run.cases if c.crossed}),
            "kv_cache_dtype": options.kv_cache_dtype,
            "verify_args": options.verify_args,
        }
        scarce = [engine for engine in cells.cross_settings(quick=options.quick) if engine.scarce and cross]
        content = {
            "machine": machine(),
            "settings": {**settings, "quick": options.quick, "seconds": round(time.perf_counter() - start)},
            **({"adapters": run.adapted()} if run.adapters else {}),
            "preemptions": {engine.name: run.preemptions(engine) for engine in scarce},
            "summary": {name: count.to_json() for name, count in summary},
            "cells": {name: count.to_json() for name, count in [*main, *cross]},
            "failures": failures,
        }
        write_json(options.output, content)
    return 1 if failures else 0


def _summary(
    names: Sequence[str], main: Sequence[tuple[str, Count]], cross: Sequence[tuple[str, Count]]
) -> list[tuple[str, Count]]:
    """Totals by part and proposer."""
    return [
        (f"{part}: {proposer}", cells.total(c for name, c in results if f"; {proposer};" in name))
        for part, results in (("all prompts", main), ("engine settings", cross))
        for proposer in names
        if results
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and return the exit status: 0 when every answer is exact."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exactness", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines, such as Spec-Bench's question.jsonl")
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="target model")
    parser.add_argument("--draft", type=Path, default=DEMO_DRAFT_MODEL, help="draft model")
    parser.add_argument(
        "--proposer", action="append", default=[], metavar="SPEC", help="a further one, as the draft service takes it"
    )
    parser.add_argument(
        "--adapters",
        type=int,
        default=0,
        help="ask each prompt also with so many random LoRA adapters, mixed in every batch; temperatures 0 and 1, "
        "concurrency 1, 8 and 64 (0: none)",
    )
    parser.add_argument(
        "--wide",
        action="store_true",
        help="concurrency 1, 8 and 64, and 8 and 64 under engine settings, as with adapters",
    )
    parser.add_argument(
        "--kv-cache-dtype", choices=KV_DTYPES, default="auto", help="as the verify service takes it (auto)"
    )
    parser.add_argument(
        "--verify-args",
        type=shlex.split,
        default=[],
        help="further ones of all verify services, as one word, such as --verify-args='--tensor-parallel-size 2'",
    )
    parser.add_argument("--limit", type=int, help="use so many prompts, spread over the categories")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens a prompt (64)")
    parser.add_argument("--part", choices=("all", "main", "cross"), default="all", help="which half of the matrix")
    parser.add_argument("--quick", action="store_true", help="half of the engine settings, 12 prompts for them")
    parser.add_argument("--fresh", action="store_true", help="forget cells of former runs")
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    return asyncio.run(_measure(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
