"""Exactness on a GPU, in one process: token ids, logprobs and whole rows of logits against a plain run, bit for bit.

    python -m benchmarks.gpu_exactness --prompts spec_bench_question.jsonl [--parts demo,logits] [--output FILE]

Requests pass through the verify loop as the service runs it, without a network. Parts:

    demo      The demo model: token ids of every prompt and logprobs of every tenth, in batches of 7 and 64 and alone.
    logits    Random weights of Llama-3.1-8B's shapes, or of those that --config names: a hash of all logits of every
              row that decided a token. benchmarks/gpu_exactness/shapes has some layers of mixtures of experts.
    inflated  The demo model widened to these shapes: its greedy tokens against the demo model's, which may differ
              where the order of summation decides a near-tie.

demo and logits run every combination of temperature, proposer (plain, random trees, an oracle's trees), prefill
chunk and prefix (computed at once, continued from the cache), and a batch that mixes all proposers and temperatures.
With --linear-activations fp8, --model is a folder of `slipstream quantize --format fp8`; random weights are rounded.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.gpu_exactness.cells import HEADER, WHOLE, Case, Cell, Count, Results, failures, rows, settings, totals
from benchmarks.gpu_exactness.inflated import compare_inflated
from benchmarks.gpu_exactness.run import ExactnessRun, Part
from benchmarks.inflate.shape_arguments import add_shape_arguments, shape_of
from benchmarks.lib.prompts import load_prompts
from benchmarks.lib.report import gpu_machine, markdown_table, write_json
from benchmarks.lib.repository import DEMO_MODEL
from benchmarks.local_engine.local_loop import EngineConfig
from benchmarks.local_engine.measured_model import OF_CONFIG, make_weights, start_model
from benchmarks.local_engine.prompt_tokens import chat_token_ids, random_token_ids
from slipstream_kernels.models.checkpoint.cache_scales import kv_form
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat
from slipstream_kernels.models.kv_dtype import KV_DTYPES
from slipstream_kernels.models.kv_form import KVForm
from slipstream_kernels.ops.gpu.cublaslt.choice import library_choice

SEED = 20_240
TOP_LOGPROBS = 4
PAGE_SIZE = 16
PARTS = ("demo", "logits", "inflated")


class Report:
    """Prints what each part found as soon as it is done, and keeps the file up to date."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._content: dict[str, Any] = {"machine": gpu_machine(options.device), "parts": {}}
        self.failures: list[str] = []

    def add(self, name: str, content: dict[str, Any], text: str, failed: Sequence[str]) -> None:
        """Enter a part."""
        self.failures += [f"{name}: {failure}" for failure in failed]
        self._content["parts"][name] = {**content, "failures": list(failed)}
        print(f"\n{name}\n\n{text}\n")
        layers = content.get("library_layers", [])
        print(f"{len(layers)} linear layers of some number of rows were cuBLASLt's")
        print("\n".join(failed) or "exact: every answer is the reference's, bit for bit", flush=True)
        if self._options.output:
            write_json(self._options.output, self._content)

    def add_results(self, name: str, results: Results, facts: dict[str, Any]) -> None:
        """Enter the results of a part made of cells."""
        sums = {key: totals(results, key) for key in ("proposer", "temperature", "batch", "setting")}
        everything = Count()
        for count in results.values():
            everything.merge(count)
        table = rows([*((n, c) for group in sums.values() for n, c in group.items()), ("all", everything)])
        content = {
            **facts,
            "cells": {cell.name: count.to_json() for cell, count in results.items()},
            "summary": {n: c.to_json() for n, c in (*sums["proposer"].items(), ("all", everything))},
        }
        self.add(name, content, markdown_table(HEADER, table), failures(results))


def run_demo(options: argparse.Namespace, report: Report) -> None:
    """The demo model on the prompts of a file."""
    prompts = load_prompts(options.prompts, limit=options.limit)
    ids = chat_token_ids(options.model, prompts)
    cases = [
        Case(prompt.name, each, SEED + index, TOP_LOGPROBS if index % 10 == 0 else None)
        for index, (prompt, each) in enumerate(zip(prompts, ids, strict=True))
    ]
    parts = [Part(batch, len(cases)) for batch in options.batches if batch > 1]
    parts += [Part(1, options.single)] if 1 in options.batches else []
    fp8 = options.linear_activations == "fp8"
    weights = make_weights("folder", options.model, shape_of(options), options.device, fp8_activations=fp8)
    form = kv_form(options.model, weights.shard.config, options.kv_cache_dtype)
    _run_cells(
        "demo", options, report, cases, parts, weights, form, tokens=options.tokens, hashed=False, loops=options.loops
    )


def run_logits(options: argparse.Namespace, report: Report) -> None:
    """Random weights: prompts of random ids, hashes of all logits."""
    fp8 = options.linear_activations == "fp8"
    kind, folder, form = "random", options.model, RoundedFormat("fp8") if fp8 else None
    if options.config is not None:
        kind, folder = OF_CONFIG, options.config
    weights = make_weights(kind, folder, shape_of(options), options.device, form=form, fp8_activations=fp8)
    lengths = [40 + 53 * index for index in range(options.logit_prompts)]
    cases = [
        Case(f"random {index}", prompt, SEED + index, 0)
        for index, prompt in enumerate(random_token_ids(lengths, weights.shard.config.vocab_size, SEED))
    ]
    parts = [Part(len(cases), len(cases)), Part(7, len(cases)), Part(1, max(1, len(cases) // 4))]
    kv = KVForm(fp8=options.kv_cache_dtype.startswith("fp8"))
    _run_cells("logits", options, report, cases, parts, weights, kv, tokens=options.logit_tokens, hashed=True, loops=1)


def _run_cells(
    name: str,
    options: argparse.Namespace,
    report: Report,
    cases: Sequence[Case],
    parts: Sequence[Part],
    weights: Any,
    form: KVForm,
    *,
    tokens: int,
    hashed: bool,
    loops: int,
) -> None:
    config = _config(options, cases, parts, tokens)
    begun = time.perf_counter()
    models = [start_model(weights, config, mode="exact", hashed=hashed, kv=form) for _ in range(loops)]
    run = ExactnessRun(models, config, cases, tokens)
    started = time.perf_counter() - begun
    referred = run.refer()
    chosen = settings(options.chunks)
    with tqdm(total=len(chosen) * (6 * len(parts) + 1), desc=name, unit="cell") as bar:

        def done(cell: Cell, count: Count) -> None:
            bar.set_postfix_str(f"{cell.name}: {count.mismatches + count.row_mismatches} mismatches")
            bar.update()

        run.run(chosen, parts, done)
    facts = {
        "prompts": len(cases),
        "prompt_tokens": sum(len(case.prompt) for case in cases),
        "tokens": tokens,
        "loops": loops,
        "kv_cache_dtype": form.name("bfloat16"),
        "linear_activations": options.linear_activations,
        "parts": [{"batch": part.batch, "prompts": part.cases} for part in parts],
        "library_layers": library_layers(),
        "seconds": {"start": started, "reference": referred, "all": time.perf_counter() - begun},
    }
    report.add_results(name, run.results, facts)


def library_layers() -> list[str]:
    """The linear layers that cuBLASLt has computed in this process: outputs x inputs, rows."""
    if not torch.cuda.is_available():
        return []
    used = library_choice(torch.device("cuda", torch.cuda.current_device())).used
    return sorted(f"{problem.outputs} x {problem.inputs}, {problem.rows} rows" for problem, _, _ in used)


def run_inflated(options: argparse.Namespace, report: Report) -> None:
    """The demo model and its inflation, greedily."""
    prompts = chat_token_ids(options.model, load_prompts(options.prompts, limit=options.inflated_prompts))
    found = compare_inflated(options.model, shape_of(options), prompts, options.inflated_tokens, options.device)
    report.add("inflated", found.to_json(), found.text(), found.failures())


def _config(options: argparse.Namespace, cases: Sequence[Case], parts: Sequence[Part], tokens: int) -> EngineConfig:
    """Room for all prompts in the cache, whole prompts in a step, and 16 rows a tree where every request has one."""
    nodes = options.rows - 1
    longest = max(len(case.prompt) for case in cases)
    batch = max(part.batch for part in parts)
    pages = sum(-(-len(case.prompt) // PAGE_SIZE) for case in cases)
    pages += (batch + 1) * -(-(longest + tokens) // PAGE_SIZE)
    return EngineConfig(
        num_pages=pages,
        page_size=PAGE_SIZE,
        max_running=batch,
        max_nodes=options.rows,
        step_nodes=max(nodes, min(nodes, 15) * batch),
        prefill_chunk=max(longest, *options.chunks),
        max_context=longest + tokens + 1,
        adaptive=False,
    )


def _chunk(text: str) -> int:
    return WHOLE if text == "whole" else int(text)


def _list(kind: Any) -> Any:
    return lambda text: [kind(part) for part in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts; the exit status is 1 where any of them found a difference or showed nothing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_exactness", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--prompts", type=Path, required=True, help="prompt file, as benchmarks.lib.prompts reads")
    parser.add_argument("--parts", type=_list(str), default=list(PARTS), help=f"of {','.join(PARTS)} (all)")
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="small model (the demo model)")
    parser.add_argument("--config", type=Path, help="folder of a config.json with the logits part's shapes (8B's)")
    parser.add_argument(
        "--kv-cache-dtype",
        choices=[each for each in KV_DTYPES if each != "float32"],
        default="auto",
        help="of the parts demo and logits, as the verify service takes it (auto)",
    )
    parser.add_argument(
        "--linear-activations",
        choices=("bfloat16", "fp8"),
        default="bfloat16",
        help="of the parts demo and logits, as the verify service takes it (bfloat16)",
    )
    parser.add_argument("--device", default="cuda", help="cuda, or cpu: the ops' twins in torch (cuda)")
    parser.add_argument("--limit", type=int, help="prompts of the demo part (all)")
    parser.add_argument("--single", type=int, default=96, help="of these, how many run alone (96)")
    parser.add_argument("--batches", type=_list(int), default=[64, 7, 1], help="requests at a time (64,7,1)")
    parser.add_argument("--chunks", type=_list(_chunk), default=[64, 512, WHOLE], help="prefill (64,512,whole)")
    parser.add_argument("--rows", type=int, default=64, help="of the largest trees, root included (64)")
    parser.add_argument("--loops", type=int, default=2, help="verify loops of the demo part, side by side (2)")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of a request in the demo part (64)")
    parser.add_argument("--logit-prompts", type=int, default=16, help="prompts of the logits part (16)")
    parser.add_argument("--logit-tokens", type=int, default=32, help="new tokens in the logits part (32)")
    parser.add_argument("--inflated-prompts", type=int, default=50, help="prompts of the inflated part (50)")
    parser.add_argument("--inflated-tokens", type=int, default=64, help="new tokens in the inflated part (64)")
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    add_shape_arguments(parser)
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}")
    if options.linear_activations == "fp8" and "inflated" in options.parts:
        parser.error("--linear-activations fp8 is for --parts demo,logits")
    report = Report(options)
    for name, part in zip(PARTS, (run_demo, run_logits, run_inflated), strict=True):
        if name in options.parts:
            part(options, report)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
