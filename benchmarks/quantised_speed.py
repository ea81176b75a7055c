"""Speed and bits of quantised weights on a GPU, at the shapes of Llama-3.1-8B.

    python -m benchmarks.quantised_speed --output quantised_speed.json       # on a GPU; about 4 minutes
    python -m benchmarks.quantised_speed --tiny --device cpu                 # a small random model, by the ops' twins

For each format the inflated model is rounded, and served through the verify loop in this process: a step of 1, 16 and
64 requests at context 1k, and answers to random prompts, plainly and with trees that hide them or are random. The same
is done with the bfloat16 model that the rounded weights decode to, whose answers are given plainly. Token ids and
logprobs (of the chosen token and the four likeliest) of all answers are compared; a difference makes the run fail.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.inflate.quantised import QuantisedTensors
from benchmarks.inflate.shape import LLAMA_8B, Shape
from benchmarks.inflate.tensors import source_of
from benchmarks.lib.report import gpu_machine, markdown_table, write_json
from benchmarks.lib.repository import DEMO_MODEL
from benchmarks.local_engine.figures import Bytes, steps_figures
from benchmarks.local_engine.local_loop import Answer, EngineConfig, Job, LocalLoop, local_loop
from benchmarks.local_engine.measured_model import start_model
from benchmarks.local_engine.prompt_tokens import random_token_ids
from benchmarks.local_engine.synthetic_trees import OracleTrees, RandomTrees, TreesByName
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat
from slipstream_kernels.models.gpu.forward.weights import GpuWeights

FORMATS = {"fp8": RoundedFormat("fp8"), "w4a16": RoundedFormat("w4a16", 128)}
TINY = Shape(128, 1, 2, 1, 64, 256, vocab_size=512, max_context=4096)
PAGE_SIZE = 16
TEMPERATURES = (0.0, 0.8)
PLAIN, RANDOM, ORACLE = "", "random", "oracle"
SEED = 11
LOGPROBS = 4
ENDLESS = 1024


@dataclass(frozen=True, slots=True)
class Sizes:
    """context: of timed steps. prompts, tokens: answers that are compared, and their length."""

    context: int = 1024
    batches: tuple[int, ...] = (1, 16, 64)
    steps: int = 60
    prompts: int = 16
    tokens: int = 96

    @property
    def config(self) -> EngineConfig:
        longest = self.context + ENDLESS + 1
        return EngineConfig(
            num_pages=max(self.batches) * -(-(self.context + ENDLESS // 2) // PAGE_SIZE) + max(self.batches),
            page_size=PAGE_SIZE,
            max_running=max(self.batches),
            max_nodes=16,
            step_nodes=15 * self.prompts,
            prefill_chunk=1024,
            max_context=longest,
        )


Answers = dict[tuple[int, float, str], Answer]


def jobs(sizes: Sizes, vocab_size: int, proposers: Sequence[str]) -> list[tuple[tuple[int, float, str], Job]]:
    prompts = random_token_ids([20 + 29 * index for index in range(sizes.prompts)], vocab_size, SEED)
    return [
        ((index, temperature, proposer),
         Job(prompt, sizes.tokens, temperature=temperature, seed=SEED + index, proposer=proposer, logprobs=LOGPROBS))
        for index, prompt in enumerate(prompts)
        for temperature in TEMPERATURES
        for proposer in proposers
    ]  # fmt: skip


def ask(loop: LocalLoop, sizes: Sizes, vocab_size: int, proposers: Sequence[str], batch: int) -> Answers:
    work = jobs(sizes, vocab_size, proposers)
    answers = loop.run([job for _, job in work], batch)
    return {name: answer for (name, _), answer in zip(work, answers, strict=True)}


def steps(loop: LocalLoop, sizes: Sizes, vocab_size: int, weight_bytes: int, kv_bytes: int) -> list[dict[str, Any]]:
    rows = []
    for batch in sizes.batches:
        prompts = random_token_ids([sizes.context] * batch, vocab_size, SEED + batch)
        with loop.decoding([Job(prompt, ENDLESS) for prompt in prompts]):
            arrivals = loop.watch(sizes.steps)
        context = sizes.context + sizes.steps // 2
        rows.append({"batch": batch, **steps_figures(arrivals, weight_bytes + batch * context * kv_bytes)})
    return rows


def measure(
    weights: GpuWeights, sizes: Sizes, truths: Answers | None
) -> tuple[dict[str, Any], Answers]:  # fmt: skip
    """Times of steps, and answers: plain ones of each prompt alone where `truths` are None, else of all proposers."""
    begun = time.perf_counter()
    config = sizes.config
    model = start_model(weights, config, mode="exact", progress=False)
    started = time.perf_counter() - begun
    vocab_size, kv = model.config.vocab_size, Bytes.of(model.config).kv_per_token
    read = weights.nbytes - weights.embedding.nbytes - weights.room.nbytes
    trees = None
    if truths is not None:
        prompts = {index: job.prompt for (index, _, _), job in jobs(sizes, vocab_size, (PLAIN,))}
        known = {(prompts[i], t, SEED + i): tuple(answer.token_ids) for (i, t, _), answer in truths.items()}
        trees = TreesByName(
            {
                ORACLE: OracleTrees(vocab_size, known, seed=SEED),
                RANDOM: RandomTrees(vocab_size, max_rows=config.max_nodes, seed=SEED),
            }
        )
    with local_loop(model, config, trees) as loop:
        rows = steps(loop, sizes, vocab_size, read, kv)
        if truths is None:
            answers = ask(loop, sizes, vocab_size, (PLAIN,), 4)
        else:
            answers = ask(loop, sizes, vocab_size, (PLAIN, ORACLE, RANDOM), sizes.prompts)
    seconds = time.perf_counter() - begun
    facts = {"weights GB": weights.nbytes / 1e9, "start s": started, "seconds": seconds, "steps": rows}
    del model, loop
    return facts, answers


def compare(got: Answers, expected: Answers) -> dict[str, Any]:
    count = {"answers": 0, "tokens": 0, "different ids": 0, "logprobs": 0, "different logprobs": 0, "accepted": 0}
    for (index, temperature, _), answer in got.items():
        reference = expected[index, temperature, PLAIN]
        assert answer.usage is not None
        count["answers"] += 1
        count["tokens"] += len(reference.token_ids)
        count["different ids"] += answer.token_ids != reference.token_ids
        count["logprobs"] += len(reference.logprobs)
        count["different logprobs"] += answer.logprobs != reference.logprobs
        count["accepted"] += answer.usage.accepted_tokens
    return count


def of_format(name: str, options: argparse.Namespace, shape: Shape, sizes: Sizes) -> dict[str, Any]:
    kind = "random" if options.tiny else "inflated"
    source = QuantisedTensors(source_of(kind, options.model, shape, device=options.device), FORMATS[name])

    def held(make: Callable[[], GpuWeights], truths: Answers | None) -> tuple[dict[str, Any], Answers]:
        result = measure(make(), sizes, truths)
        gc.collect()
        if options.device == "cuda":
            torch.cuda.empty_cache()
        return result

    decoded, expected = held(
        lambda: GpuWeights.from_tensors(source.decoded_config, source.decoded(), options.device), None
    )
    packed, got = held(lambda: GpuWeights.from_tensors(source.config, source.tensors(), options.device), expected)
    return {"decoded": decoded, "packed": packed, "comparison": compare(got, expected)}


def show(results: dict[str, Any]) -> None:
    rows = []
    for name, found in results.items():
        for kind in ("decoded", "packed"):
            size = found[kind]["weights GB"]
            rows += [[name, kind, size, row["batch"], row["step ms"], row["TB/s"]] for row in found[kind]["steps"]]
    print(markdown_table(["format", "weights", "GB", "requests", "step ms", "TB/s"], rows))
    for name, found in results.items():
        print(name, found["comparison"], flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), choices=list(FORMATS))
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="the model that is widened")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu for a trial with the ops' twins (cuda)")
    parser.add_argument("--tiny", action="store_true", help="a small model, and few answers")
    parser.add_argument("--output", type=Path, help="a JSON file")
    options = parser.parse_args(arguments)
    shape = TINY if options.tiny else LLAMA_8B
    sizes = Sizes(context=24, batches=(1, 3), steps=2, prompts=1, tokens=6) if options.tiny else Sizes()
    results: dict[str, Any] = {}
    for name in options.formats:
        results[name] = of_format(name, options, shape, sizes)
        show({name: results[name]})
        if options.output:
            write_json(options.output, {"machine": gpu_machine(options.device), "results": results})
    differing = sum(
        found["comparison"][key] for found in results.values() for key in ("different ids", "different logprobs")
    )
    accepted = all(found["comparison"]["accepted"] for found in results.values())
    return int(differing > 0 or not accepted)


if __name__ == "__main__":
    sys.exit(main())
