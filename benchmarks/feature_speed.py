"""Extraction of features against the engine's prefill and the disk: same machine, same model, same texts, one run.

    python -m benchmarks.feature_speed [--model DIR] [--answers DIR] [--device cpu] [--folder DIR] [--output FILE]

In every round the verify loop computes all texts as prompts, the stage extracts their states into a folder, and a file
of as many bytes is written to the same disk, each synced at its end. Without --answers the texts are random tokens.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.report import gpu_machine, markdown_table, write_json
from benchmarks.lib.repository import DEMO_MODEL
from benchmarks.local_engine.local_loop import EngineConfig, Job, local_loop
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from training.answers.dataset import write_set
from training.features.run import ExtractionPlan, extract_features, plan_features, remove_run
from training.features.settings import FeatureSettings, Machine

PREFILL, FEATURES, DISK = "prefill, tokens/s", "features, tokens/s", "disk, MiB/s"
SHARE_OF_PREFILL, SHARE_OF_DISK = 0.7, 0.8
"""Of which one is wanted."""
_BLOCK = 1 << 20
_RUNNING = 64


def prefill_rate(model: Any, plan: ExtractionPlan, machine: Machine) -> float:
    """Prompt tokens a second of the verify loop, each request with one token of output."""
    texts = plan.texts
    context = plan.config.max_context
    prompts = [tuple(texts.ids(index)[: context - 1].tolist()) for index in range(len(texts))]
    config = _engine_config(plan, machine)
    with local_loop(model, config) as loop:
        begun = time.perf_counter()
        loop.run([Job(prompt, max_tokens=1) for prompt in prompts], _RUNNING, timeout=3600.0)
        return sum(map(len, prompts)) / (time.perf_counter() - begun)


def feature_rate(plan: ExtractionPlan, machine: Machine, folder: Path) -> float:
    """Tokens a second of the stage, from its first pass to the last sync."""
    remove_run(folder)
    outcome = extract_features(plan, folder, machine)
    return outcome.tokens / outcome.seconds


def disk_rate(folder: Path, size: int) -> float:
    """MiB a second of a file written from front to back."""
    block = os.urandom(_BLOCK)
    path = folder.with_name("disk.bin")
    begun = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(-(-size // _BLOCK)):
            file.write(block)
        os.fsync(file.fileno())
    seconds = time.perf_counter() - begun
    path.unlink()
    return -(-size // _BLOCK) / seconds


def load_target(plan: ExtractionPlan, machine: Machine) -> Any:
    """A target for the verify loop."""
    if machine.on_cpu:
        model = CausalLM.load(plan.model, threads=machine.threads)
        model.warm_up()
        return model
    from benchmarks.local_engine.measured_model import limits_of
    from slipstream_kernels.models.gpu.gpu_model import GpuModel

    return GpuModel.load(plan.model, limits_of(_engine_config(plan, machine)), device=machine.device)


def measure(plan: ExtractionPlan, machine: Machine, folder: Path, rounds: int) -> dict[str, list[float]]:
    """The figures of all rounds; every way takes its turn in each."""
    target = load_target(plan, machine)
    size = plan.room(folder).needed
    figures: dict[str, list[float]] = {PREFILL: [], FEATURES: [], DISK: []}
    for _ in range(rounds):
        figures[PREFILL].append(prefill_rate(target, plan, machine))
        figures[FEATURES].append(feature_rate(plan, machine, folder))
        figures[DISK].append(disk_rate(folder, size))
    return figures


def report(figures: dict[str, list[float]], row_bytes: int) -> tuple[str, dict[str, float]]:
    """Tables of medians, and the shares."""
    medians = {name: statistics.median(values) for name, values in figures.items()}
    shares = {
        "of prefill": medians[FEATURES] / medians[PREFILL],
        "of the disk": medians[FEATURES] * row_bytes / 2**20 / medians[DISK],
    }
    rows: list[Sequence[object]] = [[name, medians[name], min(each), max(each)] for name, each in figures.items()]
    wanted = {"of prefill": SHARE_OF_PREFILL, "of the disk": SHARE_OF_DISK}
    text = markdown_table(("", "median", "slowest round", "fastest round"), rows)
    text += "\n\n" + markdown_table(("features' share", "", "wanted"), [[k, v, wanted[k]] for k, v in shares.items()])
    return text, shares


def _engine_config(plan: ExtractionPlan, machine: Machine) -> EngineConfig:
    longest = max(plan.texts.lengths)
    return EngineConfig(
        num_pages=_RUNNING * (-(-longest // 16) + 1),
        max_running=_RUNNING,
        max_queued=len(plan.texts),
        max_nodes=1,
        step_nodes=0,
        prefill_chunk=machine.pass_rows,
        prefix_cache=False,
        max_context=min(longest + 1, plan.config.max_context),
    )


def _random_answers(folder: Path, model: Path, tokens: int) -> Path:
    """Sequences of 100 to 700 tokens, half of each the target's."""
    random, vocabulary = np.random.default_rng(0), ModelConfig.from_folder(model).vocab_size
    records = []
    while tokens > 0:
        length = int(random.integers(100, 700))
        ids = random.integers(10, vocabulary, length).tolist()
        sequence = {"token_ids": ids, "produced": [[length // 2, length]], "turns": [], "messages": []}
        records.append({"id": f"{tokens:032x}", "origin": "", "category": "", "sequences": [sequence]})
        tokens -= length
    folder.mkdir(parents=True)
    write_set(folder, records, {}, 10_000)
    return folder


def main() -> int:
    """Entry point; exit status 0 where one of the shares is as wanted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.feature_speed", description=__doc__)
    parser.add_argument("--model", type=Path, default=DEMO_MODEL)
    parser.add_argument("--answers", type=Path)
    parser.add_argument("--tokens", type=int, default=40_000, help="random tokens, without --answers")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder unless given")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    machine = Machine(options.device, options.threads, memory_utilization=0.45)
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        room = Path(place)
        answers = options.answers or _random_answers(room / "answers", options.model, options.tokens)
        plan = plan_features([answers], options.model, FeatureSettings())
        figures = measure(plan, machine, room / "features", options.rounds)
    row_bytes = 2 * len(plan.settings.boundaries) * plan.config.hidden_size
    text, shares = report(figures, row_bytes)
    facts = gpu_machine(options.device)
    print(f"{len(plan.texts.token_ids)} tokens, {row_bytes} bytes each; load average {facts['load_average']}\n\n{text}")
    if options.output:
        write_json(options.output, {"machine": facts, "figures": figures, "shares": shares, "row_bytes": row_bytes})
    return 0 if shares["of prefill"] >= SHARE_OF_PREFILL or shares["of the disk"] >= SHARE_OF_DISK else 1


if __name__ == "__main__":
    sys.exit(main())
