"""Charts of a run that was interrupted show each step once."""

from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from training.fit.acceptance import Chances
from training.fit.metrics import TRAIN, Board, Figures

FIGURES = Figures(1.0, [1.0], [0.5], Chances(np.array([2]), np.array([1])))


def test_charts_go_on_behind_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Files of one process and second are read in the order of their numbers as text, the tenth before the ninth.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    for first, steps in ((0, (1, 2)), (0, (1, 2, 3)), (2, (3, 4))):
        with Board(tmp_path, steps=4, first=first, journal_bytes=0, progress=False) as board:
            for step in steps:
                board.tell(step, TRAIN, FIGURES)
    charts = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in charts.Scalars("train/loss")] == [1, 2, 3, 4]
    assert {"train/acceptance_length", "train/loss_by_step/0", "train/accuracy_by_step/0"} <= {
        *charts.Tags()["scalars"]
    }
