"""The stage `fit`: from features to a head, the same to the bit however often it was interrupted."""

from __future__ import annotations

import json
import math
import shutil
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from slipstream_kernels.models.capture_layers import boundaries_of
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from training.common.atomic_files import check_task, sole_user, write_whole
from training.features.source import FeatureSource
from training.fit.batch import Frame
from training.fit.card import CARD, render
from training.fit.checkpoint import Checkpoints
from training.fit.family import Family, Head, family_of
from training.fit.head_folder import copy_tokenizer, write_head
from training.fit.labels import examine
from training.fit.learner import FindingSums, Learner
from training.fit.loader import Loader, compute_dtype
from training.fit.metrics import CURVES, HELDOUT, JOURNAL, TRAIN, Board, Figures, summarised
from training.fit.parallel import World
from training.fit.plan import FitPlan, Survey, pack
from training.fit.settings import FitSettings, RunOptions
from training.fit.start import begin_as, identity_of
from training.fit.target import TargetRows
from training.fit.threads import one_thread

TASK: Final = "task.json"
MANIFEST: Final = "manifest.json"
CHECKPOINTS: Final = "checkpoints"
HEAD: Final = "head"
BOARD: Final = "tensorboard"


class DivergedError(ArithmeticError):
    """There is nothing left to learn from."""


@dataclass(frozen=True, slots=True)
class Heldout:
    """Sequences to measure on, with what a pass over their tokens found."""

    source: FeatureSource
    survey: Survey
    rows: list[list[int]]

    @classmethod
    def of(cls, source: FeatureSource, settings: FitSettings, chain: int, vocab_size: int) -> Heldout:
        """ValueError where no sequence has anything to measure on."""
        survey = Survey.of(source, row_length=settings.row_length, steps=chain, vocab_size=vocab_size)
        useful = np.flatnonzero(survey.counts[:, 0]).tolist()
        if not useful:
            raise ValueError("heldout: no sequence has two tokens in a row that the target produced")
        return cls(source, survey, pack(survey.lengths.tolist(), useful, settings.row_length))

    @property
    def counts(self) -> np.ndarray:
        """Positions that count at each step of the chain."""
        counts: np.ndarray = self.survey.counts.sum(axis=0)
        return counts


@dataclass(slots=True)
class Run:
    """A run with everything it is made of. `head` is before its first step."""

    source: FeatureSource
    folder: Path
    settings: FitSettings
    options: RunOptions
    world: World
    heldout: Heldout | None
    survey: Survey
    plan: FitPlan
    head: Head
    labels: dict[str, float]
    steps: int
    start: dict[str, Any] | None

    def learn(self) -> dict[str, Any]:
        """Take all steps that are left, then write the head; gives the manifest, which is written last."""
        learner = Learner(self.head, self.settings, self.steps, self.plan.steps, self.world)
        checkpoints = Checkpoints(self.folder / CHECKPOINTS)
        state = checkpoints.newest(self.world.device) or {"step": 0, "journal_bytes": 0}
        if state["step"]:
            learner.restore(state)
        first = state["step"]
        with ExitStack() as stack:
            board = stack.enter_context(self._board(first, state["journal_bytes"])) if self.world.leads else None
            if board is not None and not first:
                self._introduce(board)
            if self.world.device.type == "cuda":  # the processor lays out batches, each reader by itself
                stack.enter_context(one_thread())
            loader = Loader(self.source, self.settings, self.world, self._captured(learner))
            jobs = map(self.plan.step, range(first, self.plan.steps))
            for step, share in enumerate(loader.shares(jobs), first):
                done = step + 1
                tally = (
                    FindingSums(self.steps, self.world.device) if self._is_due(done, self.options.log_every) else None
                )
                more = learner.step(step, share, tally)
                if board is not None:
                    board.advance(share.tokens * self.world.size)
                if tally is not None:
                    figures = tally.figures(share.counts, self.world.sum)
                    if not math.isfinite(figures.loss):
                        raise DivergedError(f"the loss of step {done} is {figures.loss}: try a lower lr")
                    if board is not None:
                        board.tell(done, TRAIN, figures, **more)
                if done < self.plan.steps and self._is_due(done, self.options.evaluate_every):
                    self._evaluate(learner, done, board)
                if board is not None and self._is_due(done, self.options.checkpoint_every):
                    checkpoints.save(done, learner.state() | {"step": done, "journal_bytes": board.journal_bytes})
            return self._finish(learner, board)

    def _captured(self, learner: Learner) -> Frame | None:
        """The frame of all steps, of which a graph is made, where that is possible."""
        share = self.settings.batch_rows // self.world.size
        whole = not self.settings.micro_rows or self.settings.micro_rows >= share
        if self.world.device.type != "cuda" or not (self.settings.graph and self.head.repeats and whole):
            return None
        counts, documents = self.plan.largest(self.world.rank, self.world.size)
        frame = Frame.of(counts, share, documents)
        width = len(self.source.boundaries) * self.source.hidden_size
        learner.capture(frame.empty(share, self.settings.row_length, width, torch.bfloat16))
        return frame

    def _is_due(self, done: int, every: int) -> bool:
        return bool(every) and done % every == 0

    def _board(self, first: int, journal_bytes: int) -> Board:
        steps, progress = self.plan.steps, self.options.progress
        return Board(self.folder, steps=steps, first=first, journal_bytes=journal_bytes, progress=progress)

    def _introduce(self, board: Board) -> None:
        about = self.head.describe(self.survey)
        board.say(f"{self.settings.family}: {about['parameters']:,} parameters")
        for size, part in about.get("coverage_by_size", {}).items():
            chosen = ", which are scored" if size == about["draft_vocab"] else ""
            board.say(f"the {size:,} most frequent tokens are {part:.2%} of those produced{chosen}")
        board.say(f"{self.plan.used} sequences in {len(self.plan.rows)} rows, {self.plan.left_out} have no answer")

    def _evaluate(self, learner: Learner, done: int, board: Board | None) -> Figures | None:
        if self.heldout is None:
            return None
        figures = learner.evaluate(self.heldout.source, self.heldout.rows, self.heldout.counts)
        if board is not None:
            board.tell(done, HELDOUT, figures)
        return figures

    def _finish(self, learner: Learner, board: Board | None) -> dict[str, Any]:
        figures = self._evaluate(learner, self.plan.steps, board)
        about = self.head.describe(self.survey)
        if self.heldout is not None:
            about["heldout_coverage"] = self.head.describe(self.heldout.survey).get("coverage")
        manifest = {
            "settings": self.settings.document(),
            "features": self.source.fingerprint,
            "boundaries": list(self.source.boundaries),
            "steps": self.plan.steps,
            "sequences": self.plan.used,
            "data": self.survey.document(),
            **self._target(),
            "start": self.start,
            "labels": self.labels,
            "head": about,
            "heldout": None if figures is None else {"chain": len(figures.losses)} | figures.document(),
        }
        if self.world.leads:
            write_head(self.folder / HEAD, self.head.tensors(), self.head.config(), torch.bfloat16)
            write_whole(self.folder / HEAD / CARD, render(manifest).encode())
            if self.settings.family == "draft-model":
                copy_tokenizer(self.source.model, self.folder / HEAD)
            write_whole(self.folder / CURVES, _json(summarised(self.folder / JOURNAL)))
            write_whole(self.folder / MANIFEST, _json(manifest))
        self.world.wait()
        return manifest

    def _target(self) -> dict[str, Any]:
        """What it is, and which of its states are read."""
        config = ModelConfig.from_folder(self.source.model)
        shape = {"layers": config.num_layers, "hidden_size": config.hidden_size, "vocab_size": config.vocab_size}
        reads = sorted(family_of(self.settings).boundaries(config))
        return {"target": {"name": self.source.model.resolve().name} | shape, "reads": reads}


def fit(
    source: FeatureSource,
    folder: Path,
    settings: FitSettings,
    options: RunOptions,
    world: World,
    heldout: FeatureSource | None = None,
) -> dict[str, Any]:
    """Train a head of `settings.family` on `source` into `folder`; gives the manifest. All processes call it alike.

    Goes on from the last checkpoint of an equal run. ValueError names a setting that does not fit the target or the
    features; LabelError where the labels cannot be the target's; MismatchError where the folder is another run's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with sole_user(folder) if world.leads else nullcontext():
        task = {
            "settings": settings.document(),
            "features": source.fingerprint,
            "heldout": None if heldout is None else heldout.fingerprint,
            "start": _identity(settings),
            "processes": world.size,
            "device": world.device.type,
        }
        if (begun := _read(folder / TASK)) is not None:
            check_task(folder / TASK, begun, task)
        if (done := _read(folder / MANIFEST)) is not None:
            return done
        run = _prepare(source, folder, settings, options, world, heldout)
        world.wait()
        if world.leads and begun is None:
            write_whole(folder / TASK, _json(task))
        return run.learn()


def _read(path: Path) -> dict[str, Any] | None:
    """A file of JSON, if it is there."""
    content: dict[str, Any] | None = json.loads(path.read_bytes()) if path.is_file() else None
    return content


def _prepare(
    source: FeatureSource,
    folder: Path,
    settings: FitSettings,
    options: RunOptions,
    world: World,
    heldout: FeatureSource | None,
) -> Run:
    family = family_of(settings)
    if settings.batch_rows % world.size:
        raise ValueError(f"batch_rows is {settings.batch_rows}, must be a multiple of the {world.size} processes")
    target = TargetRows(source.model, world.device, compute_dtype(world.device))
    columns = columns_of(source, family, target)
    if heldout is not None and heldout.boundaries != source.boundaries:
        raise ValueError(f"held-out features have boundaries {heldout.boundaries}, the others {source.boundaries}")
    vocab_size = target.config.vocab_size
    survey = Survey.of(source, row_length=settings.row_length, steps=family.steps, vocab_size=vocab_size)
    plan = FitPlan(survey, settings)
    labels: dict[str, float] = {}
    if options.check_labels:
        last = columns[target.config.num_layers + 1]
        for report in examine(source, target, last, target.config.eos_token_ids, survey.recorded):
            report.demand()
            labels |= report.document()
    head = family.build(target, columns, survey)
    if settings.start is not None and settings.family != "draft-model":
        begin_as(head, settings.start, target)
    held = None if heldout is None else Heldout.of(heldout, settings, family.chain, vocab_size)
    start = _identity(settings)
    return Run(source, folder, settings, options, world, held, survey, plan, head, labels, family.steps, start)


def _identity(settings: FitSettings) -> dict[str, Any] | None:
    """Of what the settings begin with."""
    return None if settings.start is None else identity_of(settings.start)


def columns_of(source: FeatureSource, family: Family, target: TargetRows) -> dict[int, slice]:
    """Where each boundary of the source lies in its states. ValueError where the family wants one that is not there."""
    width, config = source.hidden_size, target.config
    if width != config.hidden_size:
        raise ValueError(f"the features are {width} wide, the target's states {config.hidden_size}")
    wanted = family.boundaries(config)
    if unknown := sorted(set(wanted) - set(boundaries_of(config.num_layers))):
        raise ValueError(f"boundaries: {unknown} are none of a model of {config.num_layers} layers")
    if missing := sorted(set(wanted) - set(source.boundaries)):
        raise ValueError(f"the features have boundaries {list(source.boundaries)}, {missing} are wanted too")
    return {each: slice(at * width, (at + 1) * width) for at, each in enumerate(source.boundaries)}


def remove_run(folder: Path) -> None:
    """Remove everything a run has written."""
    if folder.is_dir():
        with sole_user(folder):
            for name in (MANIFEST, TASK, JOURNAL, CURVES):
                (folder / name).unlink(missing_ok=True)
            for name in (CHECKPOINTS, HEAD, BOARD):
                shutil.rmtree(folder / name, ignore_errors=True)


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=1).encode() + b"\n"
