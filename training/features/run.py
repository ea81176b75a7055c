"""The stage: states of all sequences of a set of answers, into shards."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.progress import ProgressBar
from training.common.atomic_files import check_task, sole_user, write_whole
from training.features.agreement import check_agreement
from training.features.dataset import FORMAT, INDEX, VERSION, read_index
from training.features.disk_space import Room
from training.features.identity import facts_of, fingerprint_of
from training.features.packing import Int32
from training.features.progress import Mark, Progress
from training.features.reader import StateReader, open_reader
from training.features.settings import FeatureSettings, Machine
from training.features.shards import Shard, shards_of
from training.features.texts import Texts, read_texts
from training.features.writer import StateWriter

PROGRESS: Final = "progress.jsonl"
SHARD_BYTES: Final = 1 << 30
AHEAD: Final = 4
"""Passes whose states may wait to be written."""


@dataclass(frozen=True, slots=True)
class ExtractionPlan:
    """What a run is about to do: `texts` in `shards`, under `settings`, which are resolved."""

    answers: tuple[Path, ...]
    model: Path
    config: ModelConfig
    settings: FeatureSettings
    texts: Texts
    shard_bytes: int
    shards: list[Shard]

    def room(self, folder: Path) -> Room:
        """What it takes, and what there is of it."""
        return Room.of(folder, self.shards, self.texts)

    def task(self, machine: Machine) -> dict[str, Any]:
        """What decides the files, byte for byte. Reads all weights."""
        facts = facts_of(self.model, self.settings.boundaries, machine, self.texts)
        chosen = {"max_tokens": self.settings.max_tokens, "longer": self.settings.longer}
        settings = chosen | {"shard_bytes": self.shard_bytes}
        return {"fingerprint": fingerprint_of(facts), **facts, "settings": settings}


@dataclass(slots=True)
class ExtractionRun:
    """What a run came to; seconds and tokens are of this run alone."""

    index: dict[str, Any]
    seconds: float = 0.0
    tokens: int = 0


def plan_features(
    answers: Sequence[Path], model: Path, settings: FeatureSettings, *, shard_bytes: int = SHARD_BYTES
) -> ExtractionPlan:
    """Read the answers in these folders, and settle what is kept of them and what that takes.

    Raises CheckpointError, DamagedError, and ValueError for answers or settings that do not fit the model.
    """
    config = ModelConfig.from_folder(model)
    resolved = settings.resolved(config)
    texts = read_texts(answers, model, config, resolved)
    shards = list(shards_of(texts, len(resolved.boundaries) * config.hidden_size, shard_bytes))
    return ExtractionPlan(tuple(answers), model, config, resolved, texts, shard_bytes, shards)


def extract_features(plan: ExtractionPlan, folder: Path, machine: Machine, *, progress: bool = True) -> ExtractionRun:
    """Write the states of all sequences into `folder`, going on where an equal run was interrupted.

    MismatchError where the folder belongs to another run, or the target is not the one that answered; NoRoomError
    where the disk is too small, OSError where it fills up nevertheless (what was written is kept), DamagedError where
    something was lost that was whole, and what `open_reader` raises.
    """
    task = plan.task(machine)
    folder.mkdir(parents=True, exist_ok=True)
    with sole_user(folder):
        done = read_index(folder)
        if done is not None:
            check_task(folder / INDEX, done, task)
            (folder / PROGRESS).unlink(missing_ok=True)
            return ExtractionRun(done)
        if not (folder / PROGRESS).exists():
            _remove_shards(folder)  # of a run that was being removed
        plan.room(folder).check()
        outcome = ExtractionRun({})
        marks = _write_states(plan, folder, task, machine, outcome, progress)
        outcome.index = _index(plan, task, marks)
        write_whole(folder / INDEX, json.dumps(outcome.index, indent=1, ensure_ascii=False).encode() + b"\n")
        (folder / PROGRESS).unlink()
        return outcome


def remove_run(folder: Path) -> None:
    """Remove everything a run has written, the index first."""
    if folder.is_dir():
        with sole_user(folder):
            for path in (folder / INDEX, folder / PROGRESS):
                path.unlink(missing_ok=True)
            _remove_shards(folder)


def _remove_shards(folder: Path) -> None:
    for path in folder.glob("features-*.safetensors"):
        path.unlink()


def _write_states(
    plan: ExtractionPlan, folder: Path, task: dict[str, Any], machine: Machine, outcome: ExtractionRun, progress: bool
) -> list[Mark]:
    """The marks of all shards, once they are whole."""
    texts, boundaries = plan.texts, plan.settings.boundaries
    longest, total = max(texts.lengths), len(texts.token_ids)
    reader = open_reader(plan.model, boundaries, machine, longest=longest)
    check_agreement(plan.answers, plan.model, reader, boundaries, longest)
    marks = Progress(folder / PROGRESS, task)
    with StateWriter(folder, plan.shards, texts, marks) as writer:
        first = writer.next_sequence
        start, began = int(texts.offsets[first]), time.monotonic()
        with (
            closing(_written(reader, writer, _sequences(texts, first))) as passes,
            ProgressBar(total=total, initial=start, desc="features", unit="tok", disable=not progress) as bar,
        ):
            for rows in passes:
                outcome.tokens += rows
                bar.update(rows)
        outcome.seconds = time.monotonic() - began
    return marks.done


def _sequences(texts: Texts, first: int) -> Iterator[tuple[int, Int32]]:
    return ((index, texts.ids(index)) for index in range(first, len(texts)))


def _written(
    reader: StateReader, writer: StateWriter, sequences: Iterator[tuple[int, Int32]]
) -> Generator[int, None, None]:
    """The rows of each pass once they are handed on; the passes behind it are computed meanwhile.

    Once it is closed nobody uses the writer any more.
    """
    with ThreadPoolExecutor(1) as pool:
        waiting: deque[Future[int]] = deque()
        for pieces, rows in reader.states(sequences):
            waiting.append(pool.submit(writer.write, pieces, rows))
            if len(waiting) > AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _index(plan: ExtractionPlan, task: dict[str, Any], marks: list[Mark]) -> dict[str, Any]:
    texts = plan.texts
    return {
        "format": FORMAT,
        "version": VERSION,
        **task,
        "model_path": str(plan.model.resolve()),
        "hidden_size": plan.config.hidden_size,
        "num_layers": plan.config.num_layers,
        "summary": {
            "sequences": len(texts),
            "tokens": len(texts.token_ids),
            "produced": int(texts.produced.sum()),
            "recorded": int(texts.recorded.sum()),
            "omitted": texts.omitted,
        },
        "shards": [
            {"file": shard.file, "sequences": shard.sequences, "tokens": shard.tokens, "bytes": mark.bytes}
            | {"sha256": mark.sha256}
            for shard, mark in zip(plan.shards, marks, strict=True)
        ],
    }
