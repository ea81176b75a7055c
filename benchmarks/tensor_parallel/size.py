"""What is measured of one tensor-parallel size: speed, exactness, and the tokens that other sizes are compared with."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.engine.sections import Sections, Sizes
from benchmarks.gpu_exactness.cells import (
    HEADER,
    TEMPERATURES,
    Case,
    Cell,
    Count,
    Setting,
    failures,
    rows,
    settings,
    totals,
)
from benchmarks.gpu_exactness.run import ExactnessRun, Part
from benchmarks.inflate.shape_arguments import shape_of
from benchmarks.lib.prompts import load_prompts
from benchmarks.lib.report import markdown_table
from benchmarks.local_engine.local_loop import EngineConfig, local_loop
from benchmarks.local_engine.prompt_tokens import chat_token_ids, random_token_ids
from benchmarks.local_engine.synthetic_trees import SizedTrees
from benchmarks.tensor_parallel.ranks import RankedModel

SEED = 411
BATCH = 7
DECODED = 15
"""Drafted rows that each request of an exactness batch may have where all have some."""
TEXTS = 200
"""Prompts of the file among which short ones are looked for."""


def sizes_of(options: argparse.Namespace) -> Sizes:
    """What of the engine benchmark is measured."""
    return Sizes(
        contexts=(),
        batches=(1, options.batch),
        batch_context=options.measured_context,
        rows=(1, *options.rows),
        verify_batches=(1,),
        steps=options.steps,
    )


def config_of(options: argparse.Namespace) -> EngineConfig:
    """Room for both parts."""
    config = sizes_of(options).config(["batch", "verify"], options.prefill_chunk)
    cached = 2 * options.cases * -(-options.prefill_chunk // config.page_size)
    return replace(
        config,
        max_running=max(config.max_running, BATCH),
        step_nodes=max(config.step_nodes, DECODED * BATCH),
        num_pages=config.num_pages + cached,
        adaptive=False,
    )


def measure_size(
    options: argparse.Namespace, size: int, target: RankedModel, report: Callable[[str, Any], None]
) -> list[str]:
    """Measure on a target whose weights are the first kind's; returns what failed.

    `report` gets each part's name and content as soon as it is there.
    """
    config = config_of(options)
    model = target.model
    trees = SizedTrees(model.config.vocab_size)
    trees.resize(1)
    with local_loop(model, config, trees) as loop:
        measured = Sections(model, loop, trees, sizes_of(options))
        report("plain", list(measured.batch()))
        report("verify", list(measured.verify()))
    failed = []
    for kind in target.kinds:
        if kind != target.kinds[0]:
            target.next_weights(kind)
        run = ExactnessRun([model], config, _cases(options, kind), options.tokens)
        begun = time.perf_counter()
        run.refer()
        report(f"{kind} tokens", [run.reference(case, t) for case in run.cases for t in TEMPERATURES])
        if size > 1:
            failed += [f"size {size}, {kind}: {each}" for each in _exactness(run, options, kind, report)]
        report(f"{kind} seconds", time.perf_counter() - begun)
    return failed


def _exactness(
    run: ExactnessRun, options: argparse.Namespace, kind: str, report: Callable[[str, Any], None]
) -> list[str]:
    chosen: Sequence[Setting] = settings(options.chunks)
    parts = [Part(BATCH, len(run.cases)), Part(1, max(1, len(run.cases) // 4))]

    def done(cell: Cell, count: Count) -> None:
        print(f"{kind}: {cell.name}: {count.mismatches} + {count.row_mismatches}", flush=True)

    run.run(chosen, parts, done)
    everything = Count()
    for count in run.results.values():
        everything.merge(count)
    sums = {**totals(run.results, "proposer"), **totals(run.results, "batch"), "all": everything}
    print(markdown_table(HEADER, rows(sums.items())), flush=True)
    report(f"{kind} exactness", {name: count.to_json() for name, count in sums.items()})
    return failures(run.results)


def _cases(options: argparse.Namespace, kind: str) -> list[Case]:
    """Random prompts, or the first of the file that a chunk can hold; all rows of logits are compared."""
    longest = options.prefill_chunk
    if kind == "random":
        lengths = [2 + longest * (index + 1) // (options.cases + 1) for index in range(options.cases)]
        prompts = random_token_ids(lengths, shape_of(options).vocab_size, SEED)
    else:
        texts = chat_token_ids(options.model, load_prompts(options.prompts, limit=TEXTS))
        prompts = [ids for ids in texts if len(ids) <= longest][: options.cases]
    return [Case(f"{kind} {index}", prompt, SEED + index, 0) for index, prompt in enumerate(prompts)]
