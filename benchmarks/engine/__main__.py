"""Speed of the GPU engine as it is served, at the shapes of Llama-3.1-8B.

    python -m benchmarks.engine [--sections plain,verify,...] [--modes exact,fast] [--output FILE] [--plot FILE]
    python -m benchmarks.engine --merge FILE ... --output FILE [--plot FILE]

Requests pass through the verify loop of the service in this process; a step is timed from one delivery of outputs to
the next, so that scheduling, sampling and everything else on the way is in it. Weights are bfloat16, or rounded to
--format fp8 or w4a16; with --weights config they are as a folder's config.json says, which is all that it needs, such
as one of gpt-oss in mxfp4. Sections:

    plain         one request at several contexts
    batch         1 to 256 requests at context 1k, or --batches at --batch-context
    verify        trees of 1 to 64 rows, 1 to 64 requests
    device        beside the served step: its graph alone, and how long the GPU idles between steps
    prefill       prompts of 512 to 16k tokens
    transformers  Hugging Face transformers' generate with the same tensors, one request

Modes are exact, fast, fast+flashinfer, and exact+fp8, with a KV cache of 8 bits. Every section prints its table as soon
as it is done and is kept in the file, beside those of earlier runs.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.engine.plot import plot_verify
from benchmarks.engine.sections import SECTIONS, Sections, Sizes
from benchmarks.engine.transformers_model import TransformersModel
from benchmarks.inflate.shape_arguments import add_format_arguments, add_shape_arguments, format_of, shape_of
from benchmarks.inflate.tensors import source_of
from benchmarks.lib.report import gpu_machine, markdown_table, write_json
from benchmarks.lib.repository import DEMO_MODEL
from benchmarks.local_engine.figures import Figures, side_by_side
from benchmarks.local_engine.local_loop import local_loop
from benchmarks.local_engine.measured_model import OF_CONFIG, make_weights, start_model
from benchmarks.local_engine.prompt_tokens import random_token_ids
from benchmarks.local_engine.synthetic_trees import SizedTrees
from slipstream_kernels.models.checkpoint.model_config import read_json
from slipstream_kernels.models.gpu.forward.flashinfer_attention import FLASHINFER, TRITON
from slipstream_kernels.models.kv_form import KVForm

TRANSFORMERS = "transformers"
FP8 = "fp8"
"""Behind a mode: keys and values are held in 8 bits."""
MODES = ("exact", "exact+fp8", "fast", "fast+flashinfer")
COMPARED = {
    "plain": (("context", "batch"), "step ms"),
    "batch": (("context", "batch"), "step ms"),
    "verify": (("batch", "rows"), "step ms"),
    "prefill": (("prompt",), "ms"),
}
"""Of each section, the columns that name a row and the one that modes are compared by."""

Figured = dict[str, dict[str, dict[str, Any]]]
"""Mode, section: the machine, the settings, the rows."""


class Report:
    """Prints tables as they are done, and keeps the file up to date."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.figures: Figured = _read(options.merge or [options.output])

    def add(self, mode: str, section: str, facts: dict[str, Any], figures: Iterator[Figures]) -> None:
        """Measure a section and enter it."""
        rows: list[Figures] = []
        with tqdm(figures, desc=f"{mode} {section}", unit="row", leave=False) as bar:
            for row in bar:
                rows.append(row)
                bar.set_postfix_str(", ".join(f"{name} {_short(value)}" for name, value in list(row.items())[:3]))
        self.figures.setdefault(mode, {})[section] = {
            "machine": gpu_machine(self._options.device),
            **facts,
            "rows": rows,
        }
        print(f"\n{mode}: {section}\n\n{table(rows)}", flush=True)
        self.write()

    def write(self) -> None:
        """Bring the file up to date."""
        if self._options.output:
            write_json(self._options.output, {"figures": self.figures, "compared": compared(self.figures)})

    def finish(self) -> None:
        """Modes beside one another, and the plot."""
        for section, rows in compared(self.figures).items():
            print(f"\nmodes: {section}\n\n{table(rows)}")
        self.write()
        verify = {mode: sections["verify"] for mode, sections in self.figures.items() if "verify" in sections}
        if self._options.plot and verify:
            device = next(iter(verify.values()))["machine"].get("gpu", "CPU")
            lines = {mode: section["rows"] for mode, section in verify.items()}
            plot_verify(self._options.plot, lines, f"Verify step, 8B shapes, {device}")


def table(rows: Sequence[Figures]) -> str:
    """A Markdown table of rows with the same columns."""
    return markdown_table(list(rows[0]), [[row[name] for name in rows[0]] for row in rows]) if rows else "nothing"


def compared(figures: Figured) -> dict[str, list[Figures]]:
    """For each section that several modes ran: the modes side by side."""
    result: dict[str, list[Figures]] = {}
    for section, (keys, value) in COMPARED.items():
        tables = {mode: sections[section]["rows"] for mode, sections in figures.items() if section in sections}
        if len(tables) > 1:
            result[section] = side_by_side(tables, keys, value)
    return result


def _read(paths: Sequence[Path | None]) -> Figured:
    figures: Figured = {}
    for path in paths:
        if path is not None and path.exists():
            for mode, sections in json.loads(path.read_text(encoding="utf-8"))["figures"].items():
                figures.setdefault(mode, {}).update(sections)
    return figures


def _short(value: float | str | None) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def measure_modes(options: argparse.Namespace, sizes: Sizes, report: Report) -> None:
    """The sections that go through the verify loop, in every mode."""
    sections = [name for name in SECTIONS if name in options.sections]
    if not sections:
        return
    config = sizes.config(sections, options.prefill_chunk)
    form, shape = format_of(options), shape_of(options)
    weights = make_weights(options.weights, options.model, shape, options.device, form=form)
    facts = {
        "weights": options.weights,
        "format": options.format,
        "prefill_chunk": options.prefill_chunk,
        "steps": sizes.steps,
    }
    for mode in options.modes:
        kind, _, more = mode.partition("+")
        kv = KVForm(fp8=more == FP8)
        model = start_model(weights, config, mode=kind, attention=FLASHINFER if more == FLASHINFER else TRITON, kv=kv)
        print(f"{mode}: memory: {model.memory}")
        trees = SizedTrees(model.config.vocab_size)
        with local_loop(model, config, trees) as loop:
            measured = Sections(model, loop, trees, sizes)
            for name in sections:
                report.add(mode, name, facts, SECTIONS[name](measured))
        del model, measured, loop
        _free()


def measure_transformers(options: argparse.Namespace, sizes: Sizes) -> Iterator[Figures]:
    """One request of transformers' generate, with the attention it picks by itself."""
    source = source_of(options.weights, options.model, shape_of(options), device=options.device)
    fields = shape_of(options).config_json(read_json(options.model / "config.json"))
    model = TransformersModel(fields, source.tensors(), options.device)
    (prompt,) = random_token_ids([sizes.batch_context], source.config.vocab_size)
    steps = max(8, sizes.steps // 2)
    seconds = [model.step_seconds(prompt, steps) for _ in range(3)]
    median = statistics.median(seconds)
    yield {
        "context": sizes.batch_context,
        "batch": 1,
        "step ms": median * 1e3,
        "tokens/s": 1 / median,
        "slowest ms": max(seconds) * 1e3,
        "fastest ms": min(seconds) * 1e3,
        "version": model.version,
    }


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _list(text: str) -> list[str]:
    return text.split(",")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    names = [*SECTIONS, TRANSFORMERS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sections", type=_list, help=f"of {','.join(names)} (all; transformers with bfloat16 alone)")
    parser.add_argument("--modes", type=_list, default=["exact", "fast"], help=f"of {','.join(MODES)} (exact,fast)")
    parser.add_argument(
        "--weights",
        choices=("random", "inflated", OF_CONFIG),
        default="random",
        help="random or inflated ones of a shape, or random ones as config.json in --model says (random)",
    )
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="model whose constants, or text, are taken")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu for a trial with the ops' twins (cuda)")
    parser.add_argument("--prefill-chunk", type=int, default=2048, help="prompt rows of a step (2048)")
    sizes = Sizes()
    parser.add_argument("--batches", type=_numbers, default=sizes.batches, help="requests of the section batch")
    parser.add_argument("--batch-context", type=int, default=sizes.batch_context, help="their context (1024)")
    parser.add_argument("--steps", type=int, default=100, help="steps a figure is the median of (100)")
    parser.add_argument("--output", type=Path, help="JSON file to keep the results in")
    parser.add_argument("--plot", type=Path, help="picture of verify step time against rows")
    parser.add_argument("--merge", type=Path, nargs="+", help="measure nothing: join the results of these files")
    add_shape_arguments(parser)
    add_format_arguments(parser)
    options = parser.parse_args(arguments)
    if options.weights == OF_CONFIG and options.format:
        parser.error("argument --format: with --weights config the folder's quantization_config counts")
    others = options.format is not None or options.weights == OF_CONFIG or bool(shape_of(options).family)
    if options.sections is None:
        options.sections = names[:-1] if others else names
    if others and TRANSFORMERS in options.sections:
        parser.error(f"argument --sections: {TRANSFORMERS} computes with bfloat16 weights of a Llama's shape alone")
    if unknown := set(options.sections) - set(names):
        parser.error(f"unknown sections: {', '.join(sorted(unknown))}")
    if unknown := set(options.modes) - set(MODES):
        parser.error(f"unknown modes: {', '.join(sorted(unknown))}")
    return options


def run(options: argparse.Namespace, sizes: Sizes) -> Report:
    """Measure what was asked for."""
    report = Report(options)
    if not options.merge:
        measure_modes(options, sizes, report)
        if TRANSFORMERS in options.sections:
            facts = {"weights": options.weights}
            report.add(TRANSFORMERS, "plain", facts, measure_transformers(options, sizes))
            _free()
    report.finish()
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status says nothing about speed."""
    options = parse(arguments)
    run(options, Sizes(batches=options.batches, batch_context=options.batch_context, steps=options.steps))
    return 0


if __name__ == "__main__":
    sys.exit(main())
