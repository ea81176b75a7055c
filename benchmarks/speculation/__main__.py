"""Speculative rounds with an EAGLE-3 head at the shapes of Llama-3.1-8B: their time, and what they bring on real text.

    python -m benchmarks.speculation --parts rounds [--output FILE]
    python -m benchmarks.speculation --parts rounds,text --head DIR --prompts FILE [--output FILE] [--plot FILE]

Requests pass through the verify loop of the service in this process; proposers run beside it through the same exchange,
or with --drafter process in a draft service of their own. Parts:

    rounds  random weights, a head of random weights that is right as often as --accept says: times of rounds at growing
            batches, chains and trees, the node budget fixed and under the controller, against plain decoding
    text    the inflated model and the head in DIR, inflated with it, on real prompts: trees compared, then by category,
            then at growing concurrency, with speculation and without

A round's time is that between two deliveries of outputs. Every table is kept in the file beside those of earlier runs.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.inflate.folder import write_head
from benchmarks.inflate.head import DRAFT_VOCAB, HeadInflation, HeadSource, RandomHead, read_bytes
from benchmarks.inflate.shape import Shape, ShapeError
from benchmarks.inflate.shape_arguments import add_shape_arguments, shape_of
from benchmarks.inflate.tensors import source_of
from benchmarks.lib.prompts import by_category, load_prompts
from benchmarks.lib.report import gpu_machine, write_json
from benchmarks.lib.repository import DEMO_MODEL
from benchmarks.local_engine.figures import Figures
from benchmarks.local_engine.local_loop import EngineConfig
from benchmarks.local_engine.measured_model import MeasuredModel, make_weights, start_model
from benchmarks.local_engine.prompt_tokens import chat_token_ids
from benchmarks.local_engine.speculative_loop import PLACES, Drafters
from benchmarks.speculation import report as speculation_report
from benchmarks.speculation.rounds import Rounds, RoundSizes, TreeShape
from benchmarks.speculation.text import Categories, Text, TextSizes, drafters_of
from slipstream_kernels.models.checkpoint.model_config import CheckpointError
from slipstream_kernels.models.gpu.forward.weights import GpuWeights

PARTS = ("rounds", "text")
KINDS = {"rounds": "random", "text": "inflated"}
"""Weights of each part."""
SWITCH_SECONDS = 5e-4
"""How long a thread of Python waits for another one that does not rest, as in the verify service."""


class Report:
    """Prints rows as they are done, and keeps the file up to date."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        kept = ("drafter", "accept", "prompt_tokens", "steps", "settle", "tokens", "step_nodes", "mode")
        self._settings = {name: getattr(options, name) for name in kept}
        self._settings["trees"] = {name: shape.text for name, shape in options.trees.items()}
        self.sections: dict[str, dict[str, Any]] = {}
        if options.output and options.output.exists():
            self.sections = json.loads(options.output.read_text(encoding="utf-8"))["sections"]

    def take(self, rows: Iterator[tuple[str, Figures]]) -> None:
        """Enter rows of sections, in place of what the file had of these, and print each section."""
        facts = {"machine": gpu_machine(self._options.device), "settings": self._settings}
        begun: dict[str, list[Figures]] = {}
        with tqdm(rows, unit="row", leave=False) as bar:
            for section, row in bar:
                if section not in begun:
                    begun[section] = []
                    self.sections[section] = {**facts, "rows": begun[section]}
                begun[section].append(row)
                bar.set_postfix_str(", ".join(map(str, list(row.values())[:2])))
                self._write()
        for section, title in speculation_report.TITLES.items():
            if section in begun:
                print(f"\n{title}\n\n{speculation_report.table(begun[section])}", flush=True)

    def finish(self) -> None:
        """Goals, and the plot."""
        for name, value, wanted, met in speculation_report.goals(self.sections):
            print(f"{name}: {value:.2f}, {wanted}: {'met' if met == 'yes' else 'NOT MET'}", flush=True)
        if self._options.plot and "concurrency" in self.sections:
            swept = self.sections["concurrency"]
            title = f"Inflated 8B with its EAGLE-3 head, {swept['machine'].get('gpu', 'CPU')}"
            speculation_report.plot(self._options.plot, swept["rows"], title)

    def _write(self) -> None:
        if self._options.output:
            write_json(self._options.output, {"sections": self.sections})


class Bench:
    """One model of the large shape, whose weights are the parts' in turn."""

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        """work: a folder for heads and other files. Raises ShapeError, CheckpointError for a head that does not fit."""
        self._options, self._work = options, work
        self._shape: Shape = shape_of(options)
        self._rounds = RoundSizes(options.batches, options.prompt_tokens, options.steps, options.settle)
        self._text = TextSizes(options.tokens, options.trial_tokens, options.concurrency)
        self._made_as = {"entries": options.draft_vocab, "device": options.device}
        self._categories: Categories = {}
        self._head: HeadInflation | None = None
        if "text" in options.parts:
            self._categories = _categories(options)
            self._head = HeadInflation(options.head, options.model, self._shape, **self._made_as)
        self._drafters = Drafters({}, options.drafter, options.device, options.deadline_ms / 1e3)
        self._configs = dict(self._sized())
        self._weights: GpuWeights | None = None
        self._model: MeasuredModel | None = None

    def rounds(self) -> Iterator[tuple[str, Figures]]:
        """Rows of the part of that name."""
        options, shapes = self._options, self._options.trees
        measured = Rounds(self._made("rounds"), self._configs["rounds"], self._rounds, shapes, self._work)
        for row in measured.plain():
            yield "rounds", row
        boundaries = (2, self._shape.num_layers // 2, self._shape.num_layers - 3)
        folder = self._folder("rounds", RandomHead(options.model, self._shape, boundaries, **self._made_as))
        draft_bytes = {name: self._draft_bytes(shape, len(boundaries)) for name, shape in shapes.items()}
        for row in measured.speculative(folder, self._drafters, options.accept, draft_bytes):
            yield "rounds", row

    def text(self) -> Iterator[tuple[str, Figures]]:
        """Rows of the sections of the part of that name."""
        options, shapes = self._options, self._options.trees
        measured = Text(self._made("text"), self._configs["text"], self._text, self._categories, self._shape)
        for row in measured.plain():
            yield "concurrency", row
        assert self._head is not None
        drafters, states = drafters_of(str(self._folder("text", self._head)), shapes, self._drafters), self._states
        yield from measured.speculative(drafters, shapes, options.rows, states, options.draft_vocab)

    @property
    def _states(self) -> int:
        """Boundaries that the head in `--head` reads."""
        return 0 if self._head is None else len(self._head.boundaries)

    def _made(self, part: str) -> MeasuredModel:
        """The model with the weights of a part."""
        options, kind = self._options, KINDS[part]
        if self._model is None or self._weights is None:
            self._weights = make_weights(kind, options.model, self._shape, options.device)
            largest = _largest(list(self._configs.values()))
            self._model = start_model(self._weights, largest, mode=options.mode, boundaries=max(3, self._states))
            gc.freeze()
        else:
            source = source_of(kind, options.model, self._shape, device=options.device)
            self._weights.refill(source.tensors(), progress=True)
        _free()
        return self._model

    def _folder(self, part: str, head: HeadSource) -> Path:
        """The head's folder, with the embedding of the part's model in it, which has no folder."""
        options, folder = self._options, self._work / f"head-{part}"
        target = source_of(KINDS[part], options.model, self._shape, device=options.device)
        write_head(head, folder, embedding=target.embedding())
        _free()
        return folder

    def _draft_bytes(self, shape: TreeShape, states: int) -> int:
        entries = self._options.draft_vocab
        return read_bytes(self._shape, states=states, entries=entries, passes=shape.steps, context=0)

    def _sized(self) -> Iterator[tuple[str, EngineConfig]]:
        """What each part's loop has to hold."""
        options, shapes = self._options, list(self._options.trees.values())
        if "rounds" in options.parts:
            yield "rounds", self._rounds.config(shapes, options.step_nodes, options.prefill_chunk)
        if "text" in options.parts:
            prompts = [prompt for prompts in self._categories.values() for prompt in prompts]
            rows = max(shape.rows for shape in shapes)
            yield "text", self._text.config(prompts, rows, options.step_nodes, options.prefill_chunk)


def _categories(options: argparse.Namespace) -> Categories:
    """Token ids of so many prompts of each category, those left out that are too long."""
    chosen: Categories = {}
    for category, prompts in by_category(load_prompts(options.prompts)).items():
        ids = [each for each in chat_token_ids(options.model, prompts) if len(each) <= options.longest]
        if ids:
            chosen[category] = ids[:: max(1, len(ids) // options.per_category)][: options.per_category]
    return chosen


def _largest(configs: Sequence[EngineConfig]) -> EngineConfig:
    """What holds each of them."""
    numbers = {field.name for field in fields(EngineConfig) if field.type == "int"}
    return replace(configs[0], **{name: max(getattr(each, name) for each in configs) for name in numbers})


def _free() -> None:
    """What was made is there for every stream, and what was needed for it is given back."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def _trees(text: str) -> dict[str, TreeShape]:
    pairs = (part.split("=", 1) for part in text.split(","))
    return {name: TreeShape.parse(shape) for name, shape in pairs}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speculation", description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    add("--parts", type=lambda text: text.split(","), default=list(PARTS), help=f"of {','.join(PARTS)} (all)")
    add("--device", default="cuda", help="cuda, or cpu for a trial at small shapes with the ops' twins (cuda)")
    add("--drafter", choices=PLACES, default=PLACES[0], help="where proposers run (inproc)")
    add("--trees", type=_trees, default=_trees("chain=5/1/6,tree=5/8/64"), metavar="NAME=STEPS/TOPK/ROWS,...",
        help="trees of both parts (chain=5/1/6,tree=5/8/64)")  # fmt: skip
    add("--rows", type=_numbers, default=(16, 32), help="budgets to try on text below a tree's own (16,32)")
    add("--accept", type=float, default=0.7, help="how often a random head's first choice is right (0.7)")
    add("--batches", type=_numbers, default=(1, 4, 16, 64), help="of rounds (1,4,16,64)")
    add("--prompt-tokens", type=int, default=1024, help="of their prompts (1024)")
    add("--steps", type=int, default=60, help="rounds that are timed (60)")
    add("--settle", type=int, default=40, help="rounds before those (40)")
    add("--model", type=Path, default=DEMO_MODEL, help="model to inflate (the demo model)")
    add("--head", type=Path, help="its EAGLE-3 head, as training writes it")
    add("--draft-vocab", type=int, default=DRAFT_VOCAB, help="tokens that a head scores (%(default)s)")
    add("--prompts", type=Path, help="file of prompts by category, such as Spec-Bench's")
    add("--per-category", type=int, default=3, help="prompts of a category (3)")
    add("--longest", type=int, default=1500, help="tokens of the longest prompt (1500)")
    add("--tokens", type=int, default=96, help="new tokens of an answer (96)")
    add("--trial-tokens", type=int, default=48, help="new tokens of an answer while trees are compared (48)")
    add("--concurrency", type=_numbers, default=(1, 4, 16, 64), help="requests in flight (1,4,16,64)")
    add("--mode", choices=("exact", "fast"), default="exact", help="of the engine (exact)")
    add("--step-nodes", type=int, default=1024, help="drafted rows of a step, over all requests (1024)")
    add("--prefill-chunk", type=int, default=1024, help="prompt rows of a step (1024)")
    add("--deadline-ms", type=float, default=2000.0, help="how long a step may wait for trees (2000)")
    add("--log-level", choices=("info", "warning"), default="warning", help="least level logged (warning)")
    add("--work", type=Path, help="folder for heads, 2 GB each (a temporary one)")
    add("--output", type=Path, help="JSON file to keep the results in")
    add("--plot", type=Path, help="picture of time a token and throughput against concurrency")
    add_shape_arguments(parser)
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}")
    if "text" in options.parts and not (options.head and options.prompts):
        parser.error("part text needs --head and --prompts")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status says nothing about speed."""
    options = parse(arguments)
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", level=options.log_level.upper())
    sys.setswitchinterval(SWITCH_SECONDS)
    report = Report(options)
    with tempfile.TemporaryDirectory() as temporary:
        try:
            bench = Bench(options, options.work or Path(temporary))
        except (ShapeError, CheckpointError, OSError) as error:
            print(error, file=sys.stderr)
            return 1
        for part in options.parts:
            report.take(bench.rounds() if part == "rounds" else bench.text())
    report.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
