"""Acceptance length (tokens a verify step yields, bonus included) by proposer and category, on real services.

    python -m benchmarks.acceptance --prompts DIR [--limit N] [--output FILE]

DIR holds the prompt files named by --files. Answers end by themselves or after --tokens tokens. Each figure is given
for all answers and for those that never repeat a run of 16 tokens, at temperature 0 and at 0.8 with a seed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.prompts import Prompt, load_prompts
from benchmarks.report import machine, markdown_table, write_json
from benchmarks.runner import Answer, Job, connect
from launcher.cluster import Cluster

ROOT = Path(__file__).resolve().parents[1]
FILES = ("spec_bench_question.jsonl", "in_domain_heldout.jsonl")
TEMPERATURES = (0.0, 0.8)
SEED = 7_001
GRAM = 16
ALL_FILES = "all files"


@dataclass(frozen=True, slots=True)
class Setting:
    """A proposer under its limits; `draft_args` are of the draft service."""

    name: str
    proposer: str
    draft_args: tuple[str, ...] = ()


CHAINS = ("--max-depth", "4", "--max-nodes", "5", "--topk", "1")
TREES = ("--max-depth", "4", "--max-nodes", "16", "--topk", "4")
SETTINGS = (
    Setting("draft-model, chain of 4", "draft-model", CHAINS),
    Setting("draft-model, tree of 15, depth 4", "draft-model", TREES),
    Setting("ngram", "ngram"),
)


@dataclass(slots=True)
class Tally:
    """Sums over answers."""

    answers: int = 0
    repeating: int = 0
    """Answers in which some run of 16 tokens occurs twice."""
    decoded: int = 0
    decode_steps: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, answer: Answer) -> None:
        self.answers += 1
        self.repeating += repeats(answer.token_ids)
        self.decoded += answer.decoded
        self.decode_steps += answer.decode_steps
        self.drafted += answer.drafted
        self.accepted += answer.accepted

    @property
    def acceptance_length(self) -> float | None:
        """Tokens a verify step yielded, over all steps of all answers but those that ended the prompts."""
        return self.decoded / self.decode_steps if self.decode_steps else None


def repeats(tokens: Sequence[int], size: int = GRAM) -> bool:
    """Whether some run of `size` tokens occurs twice."""
    grams = [tuple(tokens[start : start + size]) for start in range(len(tokens) - size + 1)]
    return len(set(grams)) < len(grams)


@dataclass(slots=True)
class Record:
    """One answer and where it belongs."""

    file: str
    category: str
    setting: str
    temperature: float
    answer: Answer


async def collect(options: argparse.Namespace) -> list[Record]:
    """Run every prompt under every setting and temperature, each setting on services of its own."""
    files = {name: load_prompts(options.prompts / name, limit=options.limit) for name in options.files}
    prompts: list[tuple[str, Prompt]] = [(name, prompt) for name, each in files.items() for prompt in each]
    records: list[Record] = []
    with _bar(len(prompts) * len(SETTINGS) * len(TEMPERATURES)) as bar:
        for setting in SETTINGS:
            with _cluster(options, setting) as cluster:
                async with connect(cluster.gateway_grpc) as runner:
                    ids = await runner.tokenize([prompt for _, prompt in prompts])
                    for temperature in TEMPERATURES:
                        bar.set_postfix_str(f"{setting.name} T={temperature:g}")
                        jobs = [
                            Job(
                                each,
                                options.tokens,
                                temperature=temperature,
                                seed=SEED + index,
                                proposer=setting.proposer,
                            )
                            for index, each in enumerate(ids)
                        ]
                        answers = await runner.run(jobs, options.concurrency, bar.update)
                        for (file, prompt), answer in zip(prompts, answers, strict=True):
                            records.append(Record(file, prompt.category, setting.name, temperature, answer))
    return records


def _cluster(options: argparse.Namespace, setting: Setting) -> Cluster:
    # Waiting for trees keeps the figures a property of the proposers, not of this machine's load.
    verify_args = ("--draft-deadline-ms", "250", "--num-pages", str(options.pages), "--log-level", "warning")
    proposer = f"draft-model:{options.draft}" if setting.proposer == "draft-model" else setting.proposer
    return Cluster(options.model, draft=(proposer,), verify_args=verify_args, draft_args=setting.draft_args)


def tally(records: Sequence[Record], *, fresh_only: bool) -> dict[tuple[str, str, str, float], Tally]:
    """Sums by (file, category, setting, temperature); category "all" sums a file. `fresh_only` drops repeaters."""
    sums: dict[tuple[str, str, str, float], Tally] = {}
    for record in records:
        if fresh_only and repeats(record.answer.token_ids):
            continue
        for place in ((record.file, "all"), (record.file, record.category), (ALL_FILES, "all")):
            key = (*place, record.setting, record.temperature)
            sums.setdefault(key, Tally()).add(record.answer)
    return sums


def table(records: Sequence[Record], file: str) -> str:
    """One file's figures by category, setting and temperature; in brackets those without repeating answers."""
    every, fresh = tally(records, fresh_only=False), tally(records, fresh_only=True)
    columns = [(setting.name, temperature) for temperature in TEMPERATURES for setting in SETTINGS]
    categories = dict.fromkeys(category for name, category, _, _ in every if name == file)
    ordered = [*(category for category in categories if category != "all"), "all"]
    rows: list[list[object]] = []
    for category in ordered:
        cells = [_cell(every.get((file, category, *c)), fresh.get((file, category, *c))) for c in columns]
        rows.append([category, *cells])
    shares = [every[file, "all", setting, t] for setting, t in columns]
    rows.append(["answers that repeat a 16-gram", *(f"{100 * s.repeating / s.answers:.1f} %" for s in shares)])
    return markdown_table(["category", *(f"{setting}, T={t:g}" for setting, t in columns)], rows)


def _cell(every: Tally | None, fresh: Tally | None) -> str:
    figures = [None if each is None else each.acceptance_length for each in (every, fresh)]
    first, second = ("-" if figure is None else f"{figure:.2f}" for figure in figures)
    return f"{first} ({second})"


def to_json(records: Sequence[Record]) -> list[dict[str, Any]]:
    """All sums, a record a cell."""
    parts = [(False, "all answers"), (True, "without answers that repeat a 16-gram")]
    return [
        {
            **dict(zip(("file", "category", "setting", "temperature"), key, strict=True)),
            "answers_counted": label,
            **asdict(sums),
            "acceptance_length": sums.acceptance_length,
        }
        for fresh_only, label in parts
        for key, sums in tally(records, fresh_only=fresh_only).items()
    ]


def _bar(total: int) -> tqdm[Any]:
    return tqdm(total=total, desc="acceptance", unit="req", smoothing=0.05, mininterval=1.0, dynamic_ncols=True)


async def _measure(options: argparse.Namespace) -> int:
    start = time.perf_counter()
    records = await collect(options)
    for file in (*options.files, ALL_FILES):
        print(f"\n{file}\n\n{table(records, file)}")
    if options.output:
        given = {"limit": options.limit, "tokens": options.tokens, "concurrency": options.concurrency}
        seconds = round(time.perf_counter() - start)
        write_json(
            options.output, {"machine": machine(), "settings": given | {"seconds": seconds}, "cells": to_json(records)}
        )
        answers = options.output.with_suffix(".answers.json")
        if options.keep_answers:
            answers.write_text(json.dumps([asdict(record) for record in records]), encoding="utf-8")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.acceptance", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--prompts", type=Path, required=True, help="folder of the prompt files")
    parser.add_argument("--files", nargs="+", default=list(FILES), help="names of the files in it")
    parser.add_argument("--model", type=Path, default=ROOT / "demo_models" / "slipstream-demo", help="target model")
    parser.add_argument(
        "--draft", type=Path, default=ROOT / "demo_models" / "slipstream-demo-draft", help="draft model"
    )
    parser.add_argument("--limit", type=int, help="prompts of each file, spread over its categories")
    parser.add_argument("--tokens", type=int, default=128, help="longest answer (128)")
    parser.add_argument("--concurrency", type=int, default=8, help="requests in flight (8)")
    parser.add_argument(
        "--pages", type=int, default=24_576, help="KV pages: all prompts' pages fit, so each is computed once"
    )
    parser.add_argument("--keep-answers", action="store_true", help="write every answer beside the output")
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    return asyncio.run(_measure(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
