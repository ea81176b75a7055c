"""Figures of a run: to a journal that survives kills, to the terminal, to TensorBoard."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from slipstream_kernels.progress import ProgressBar
from training.common.atomic_files import AppendFile, json_lines
from training.fit.acceptance import Chances

JOURNAL: Final = "metrics.jsonl"
CURVES: Final = "metrics.json"
TRAIN, HELDOUT = "train", "heldout"


@dataclass(frozen=True, slots=True)
class Figures:
    """What some positions came to, by unroll step. loss: as it was learnt from."""

    loss: float
    losses: Sequence[float]
    accuracy: Sequence[float]
    chances: Chances

    def document(self) -> dict[str, Any]:
        """As JSON has it. Losses are nats a position; accepted is the part of the drafted tokens that were tried."""
        return {
            "loss": round(self.loss, 5),
            "loss_by_step": [round(each, 5) for each in self.losses],
            "accuracy_by_step": [round(each, 5) for each in self.accuracy],
            "accepted_by_step": np.round(self.chances.accepted / np.maximum(self.chances.tried, 1), 5).tolist(),
            "acceptance_length": round(self.chances.length, 4),
        }


class Board:
    """Where figures go. Only the leading process has one; its journal goes on after the bytes of a checkpoint."""

    def __init__(self, folder: Path, *, steps: int, first: int, journal_bytes: int, progress: bool) -> None:
        self._journal = AppendFile(folder / JOURNAL, journal_bytes)
        self._bar = ProgressBar(total=steps, initial=first, desc="fit", unit="step", disable=not progress)
        self._writer = _writer(folder / "tensorboard", first, progress)
        self._last, self._tokens = time.perf_counter(), 0

    @property
    def journal_bytes(self) -> int:
        """How far the journal has grown."""
        self._journal.sync()
        return self._journal.size

    def advance(self, tokens: int) -> None:
        """A step is done, over so many tokens."""
        self._tokens += tokens
        self._bar.update()

    def tell(self, step: int, kind: str, figures: Figures, **more: float) -> None:
        """Figures after `step` steps; `kind` is TRAIN or HELDOUT. Speed is told, not kept: files tell no time."""
        document = (
            {"step": step, "kind": kind} | figures.document() | {name: round(each, 8) for name, each in more.items()}
        )
        self._journal.append(json.dumps(document).encode() + b"\n")
        now = time.perf_counter()
        if kind == TRAIN:
            more["tokens_per_second"] = self._tokens / (now - self._last)
            self._last, self._tokens = now, 0
            self._bar.set_postfix_str(
                f"loss {figures.loss:.3f}, accuracy {figures.accuracy[0]:.1%} to {figures.accuracy[-1]:.1%}, "
                f"acceptance length {figures.chances.length:.2f}, {more['tokens_per_second']:.0f} tok/s"
            )
        else:
            self.say(f"step {step}, held out: {described(figures)}")
        self._chart(step, kind, figures, more)

    def say(self, text: str) -> None:
        """A line above the bar."""
        if not self._bar.disable:
            self._bar.write(text)

    def _chart(self, step: int, kind: str, figures: Figures, more: dict[str, float]) -> None:
        if self._writer is None:
            return
        scalars = {"loss": figures.loss, "acceptance_length": figures.chances.length} | more
        for name, by_step in (("loss", figures.losses), ("accuracy", figures.accuracy)):
            scalars |= {f"{name}_by_step/{number}": value for number, value in enumerate(by_step)}
        for name, value in scalars.items():
            self._writer.add_scalar(f"{kind}/{name}", value, step)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
        self._journal.close()
        if self._writer is not None:
            self._writer.close()


def summarised(journal: Path) -> dict[str, Any]:
    """What the report of acceptance takes of a run: the last figures, held-out ones where there are, and curves."""
    lines = [line for _, _, line in json_lines(journal)]
    train, heldout = ([line for line in lines if line["kind"] == kind] for kind in (TRAIN, HELDOUT))
    curves: dict[str, list[float]] = {"step": [line["step"] for line in train]}
    for name in ("loss", "acceptance_length", "lr"):
        curves[name] = [line[name] for line in train]
    found: dict[str, Any] = {"curves": curves}
    if last := (heldout or train)[-1:]:
        found["simulated_acceptance_length"] = last[0]["acceptance_length"]
        found["accuracy_by_step"] = last[0]["accepted_by_step"]
        found["measured_on"] = last[0]["kind"]
    return found


def described(figures: Figures) -> str:
    """One line for people."""
    accuracy = " ".join(f"{each:.1%}" for each in figures.accuracy)
    return f"acceptance length {figures.chances.length:.2f} (simulated), loss {figures.loss:.3f}, accuracy {accuracy}"


def _writer(folder: Path, first: int, progress: bool) -> Any:
    """TensorBoard's writer, whose charts forget steps after `first`; None where it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError:
        if progress:
            print("no charts: tensorboard is not installed (the package's extra `train` has it)")
        return None
    return SummaryWriter(str(folder), purge_step=first + 1)
