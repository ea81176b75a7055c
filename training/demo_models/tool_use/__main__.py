"""Teaches the demo models tools and JSON: `python -m training.demo_models.tool_use --models DIR ...`.

The target goes on learning on conversations made by code, held to what it was elsewhere; then the draft model and the
EAGLE-3 head go on with the target's own answers. Each model is put into --out as soon as it is done, and with --install
all three take the place of those in --models at the end.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from slipstream.packages import child_environment
from training.common.model import CausalLM
from training.demo_models.evaluate import acceptance_report, heldout_report, read_prompts, sample_answers
from training.demo_models.export import export, load
from training.demo_models.pretrain import DRAFT_NAME, TARGET_NAME
from training.demo_models.progress import Progress
from training.demo_models.sampler import generate
from training.demo_models.states import room_for_states, states_of
from training.demo_models.target import frozen_copy
from training.demo_models.tokenizer import chat_prompt, stop_ids
from training.demo_models.tool_use.head import MemoryFeatures, first_of, head_settings, measured, run
from training.demo_models.tool_use.install import HEAD_NAME, install
from training.demo_models.tool_use.judge import cases, judged
from training.demo_models.tool_use.learn import (
    Answered,
    TargetLesson,
    answer,
    joined,
    learn_draft,
    ordinary,
    to_answer_corpus,
    to_weighted_corpus,
    trainable,
)
from training.demo_models.tool_use.prepare import HELDOUT_SEED, Prepared
from training.demo_models.tool_use.settings import Options, parse

PIECE_BYTES = 15_000_000
HEAD_START_SECONDS = 12.0
"""What a run of `fit` takes beside its steps."""


class Stages:
    """A run, stage by stage. Figures are kept after each."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.progress = Progress()
        self.progress.results["recipe"] = asdict(options.recipe)
        self.dtype = torch.bfloat16 if options.device.startswith("cuda") else torch.float32
        self.old = load(options.models / TARGET_NAME, self.dtype, options.device)
        self.tokenizer = Tokenizer.from_file(str(options.models / TARGET_NAME / "tokenizer.json"))
        self.stops = stop_ids(self.tokenizer)

    @property
    def left(self) -> float:
        """Seconds until everything must be over, but for what is kept for the last figures."""
        return self.options.recipe.seconds - self.options.recipe.reserve - self.progress.elapsed

    def start_preparation(self) -> subprocess.Popen[bytes]:
        """Make and tokenise text in a process of its own."""
        options, recipe = self.options, self.options.recipe
        folders = (options.corpus, options.work / "text", options.models / TARGET_NAME / "tokenizer.json")
        numbers = (recipe.row_length, recipe.longest, recipe.seed, options.workers, recipe.conversations)
        command = [sys.executable, "-m", "training.demo_models.tool_use.prepare", *map(str, (*folders, *numbers))]
        return subprocess.Popen(command, env=os.environ | child_environment())

    def prepared(self, process: subprocess.Popen[bytes]) -> Prepared:
        """What that process has written."""
        if process.wait() != 0:
            raise RuntimeError(f"preparation ended with status {process.returncode}")
        return Prepared.load(self.options.work / "text")

    def target(self, preparation: subprocess.Popen[bytes]) -> tuple[CausalLM, Prepared]:
        """The target, taught and exported, and the text that is there by then."""
        options, recipe = self.options, self.options.recipe
        model = trainable(options.models / TARGET_NAME, self.dtype, options.device)
        lesson = TargetLesson(options, model, self.old)
        with self.progress.phase("compile target"):
            lesson.warm_up()
        with self.progress.phase("wait for text"):
            prepared = self.prepared(preparation)
        with self.progress.phase("answers before"):
            count = max(8, recipe.answers // 4)
            said = answer(options, self.old, prepared, self.stops, count, recipe.answer_seconds / 3, 0.0)
        chats = joined(ordinary(options, prepared), to_answer_corpus(said, options.device))
        with self.progress.phase("target"):
            lesson.learn(self.progress, to_weighted_corpus(prepared.made, options.device), chats)
        done = frozen_copy(model)
        export(done, self.tokenizer, options.work / TARGET_NAME)
        self.ship(TARGET_NAME)
        return done, prepared

    def compare_targets(self, prepared: Prepared, target: CausalLM) -> None:
        """Figures of the target before and after: loss of ordinary text, answers with tools and JSON."""
        options, recipe = self.options, self.options.recipe
        known = cases(prepared.pairs, recipe.judged, HELDOUT_SEED, trained=True)
        unknown = cases(prepared.pairs, recipe.judged, HELDOUT_SEED + 1, trained=False)
        for name, model in (("before", self.old), ("after", target)):
            report: dict[str, Any] = {
                "heldout": heldout_report(model, prepared.heldout, recipe.row_length, options.device),
                "known functions": judged(model, self.tokenizer, known),
                "new functions": judged(model, self.tokenizer, unknown),
                "samples": sample_answers(model, self.tokenizer),
            }
            self.keep(f"target {name}", report)
            self.progress.say(json.dumps({key: report[key]["kinds"] for key in ("known functions", "new functions")}))
            self.progress.say(json.dumps(report["heldout"]["answers"]))

    def draft(self, target: CausalLM, said: Answered) -> CausalLM:
        """The draft model, taught and exported."""
        options = self.options
        model = trainable(options.models / DRAFT_NAME, self.dtype, options.device)
        learn_draft(options, self.progress, model, target, to_answer_corpus(said, options.device))
        done = frozen_copy(model)
        export(done, self.tokenizer, options.work / DRAFT_NAME)
        self.ship(DRAFT_NAME)
        return done

    def compare_drafts(self, target: CausalLM, draft: CausalLM) -> None:
        """Acceptance length of the draft models, each with its own target, and of the old one with the new target."""
        options = self.options
        old = load(options.models / DRAFT_NAME, self.dtype, options.device)
        pairs = (("before", self.old, old), ("after", target, draft), ("old with new target", target, old))
        for name, judge, drafter in pairs:
            report = {}
            for prompts in ("spec_bench_question", "in_domain_heldout"):
                path = self.few(options.eval_prompts / f"{prompts}.jsonl")
                report[prompts] = acceptance_report(judge, drafter, self.tokenizer, path)
            self.keep(f"draft {name}", report)
            lengths = {key: found["acceptance_length"]["overall"] for key, found in report.items()}
            self.progress.say(f"draft {name}: {lengths}")

    def few(self, path: Path) -> Path:
        """A file with no more prompts than are compared, evenly taken."""
        lines = path.read_text(encoding="utf-8").splitlines()
        step = max(1, len(lines) // self.options.recipe.compared)
        chosen = self.options.work / path.name
        chosen.write_text("\n".join(lines[::step]) + "\n", encoding="utf-8")
        return chosen

    def heldout(self, model: CausalLM, folder: Path) -> MemoryFeatures:
        """A target's greedy answers to Spec-Bench's questions, with its states."""
        options, recipe = self.options, self.options.recipe
        path = self.few(options.eval_prompts / "spec_bench_question.jsonl")
        prompts = [chat_prompt(self.tokenizer, prompt.messages) for prompt in read_prompts(path)]
        fitting = [ids for ids in prompts if len(ids) + recipe.answer_tokens <= recipe.head_row_length]
        answers = generate(model, fitting, [0.0] * len(fitting), recipe.answer_tokens, self.stops, 0)
        return self.features(
            model, folder, Answered([np.array(ids, np.uint16) for ids in fitting], answers, [False] * len(fitting))
        )

    def features(self, model: CausalLM, folder: Path, said: Answered) -> MemoryFeatures:
        """States of what a target says, or of as much of it as a GPU has room for."""
        room = room_for_states(model.cos.device)
        return MemoryFeatures(folder, states_of(model, said, lambda held: held < room))

    def head(self, target: CausalLM, said: Answered) -> None:
        """The EAGLE-3 head, taught and exported, with what the old one is worth on the new target."""
        options, recipe, work = self.options, self.options.recipe, self.options.work
        start = options.models / HEAD_NAME
        with self.progress.phase("states"):
            source = self.features(target, work / TARGET_NAME, first_of(said, recipe.head_tokens))
            heldout = self.heldout(target, work / TARGET_NAME)
        with self.progress.phase("head trial"):
            before, speed = measured(options, source, heldout, start, work / "trial", recipe.head_trial_steps)
        self.keep("head old with new target", before)
        seconds = min(recipe.head_seconds, self.left) - HEAD_START_SECONDS
        steps = recipe.head_steps or max(1, int(0.92 * seconds * speed))
        self.progress.say(f"head: {steps} steps at {speed:.1f} a second; before {before['acceptance_length']}")
        with self.progress.phase("head"):
            settings = head_settings(options, start, steps, recipe.head_lr)
            manifest = run(options.device, source, heldout, settings, work / "head")
        shutil.copytree(work / "head" / "head", work / HEAD_NAME, dirs_exist_ok=True)
        self.ship(HEAD_NAME)
        self.keep("head after", manifest["heldout"] | {"steps": steps, "data": manifest["data"]})
        self.progress.say(f"head after: {manifest['heldout']['acceptance_length']}")
        if self.left > 0:
            kept = self.heldout(self.old, options.models / TARGET_NAME)
            found, _ = measured(options, kept, kept, start, work / "before", 1)
            self.keep("head before", found)
            self.progress.say(f"head before, old target: {found['acceptance_length']}")

    def keep(self, name: str, found: dict[str, Any]) -> None:
        """Put figures into results.json."""
        self.progress.results[name] = found
        self.progress.save(self.options.out / "results.json")

    def ship(self, name: str) -> None:
        """A model's folder as tars of PIECE_BYTES at most; each holds whole files."""
        pieces: list[list[Path]] = [[]]
        for path in sorted((self.options.work / name).iterdir()):
            if sum(other.stat().st_size for other in (*pieces[-1], path)) > PIECE_BYTES and pieces[-1]:
                pieces.append([])
            pieces[-1].append(path)
        for number, piece in enumerate(pieces, start=1):
            with tarfile.open(self.options.out / f"{name}-{number}.tar", "w") as archive:
                for path in piece:
                    archive.add(path, f"{name}/{path.name}")
        self.progress.say(f"{name} is in {len(pieces)} pieces at {self.options.out}")


def main(arguments: list[str] | None = None) -> None:
    """Command line entry."""
    options = parse(arguments)
    torch.set_float32_matmul_precision("high")
    options.work.mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    stages = Stages(options)
    recipe = options.recipe
    target, prepared = stages.target(stages.start_preparation())
    stages.compare_targets(prepared, target)
    with stages.progress.phase("answers"):
        said = answer(options, target, prepared, stages.stops, recipe.answers, recipe.answer_seconds, recipe.tool_share)
    stages.progress.say(f"{len(said.answers)} answers, {sum(map(len, said.answers)) / 1e6:.1f} M tokens")
    draft = stages.draft(target, said)
    stages.compare_drafts(target, draft)
    stages.head(target, said)
    stages.progress.say("done")
    stages.keep("done", {"seconds": round(stages.progress.elapsed, 1)})
    if options.install:
        install(options.out, options.models)


if __name__ == "__main__":
    main()
