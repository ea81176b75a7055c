"""The figures of training, as they are read."""

from __future__ import annotations

import json

import pytest

from training.evaluate.simulated import METRICS, read_simulated


def written(folder, **content):
    (folder / METRICS).write_text(json.dumps(content))
    return folder


def test_a_run_and_its_file_say_the_same(tmp_path):
    curves = {"step": [1, 2], "loss": [3.0, 2.5]}
    folder = written(
        tmp_path, simulated_acceptance_length=2.75, accuracy_by_step=[0.75, 0.5, 0.5], curves=curves, other="kept out"
    )
    simulated = read_simulated(folder)
    assert simulated == read_simulated(folder / METRICS)
    assert simulated.curves == curves
    assert simulated.by_position == [0.75, 0.375, 0.1875]
    assert simulated.to_depth(2) == 1 + 0.75 + 0.375
    assert simulated.to_depth(9) == 1 + 0.75 + 0.375 + 0.1875


def test_without_accuracies_the_figure_is_the_file_s(tmp_path):
    assert read_simulated(written(tmp_path, simulated_acceptance_length=3)).to_depth(2) == 3.0


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({}, "simulated_acceptance_length"),
        ({"simulated_acceptance_length": 0.4}, "simulated_acceptance_length"),
        ({"simulated_acceptance_length": "2"}, "simulated_acceptance_length"),
        ({"simulated_acceptance_length": 2, "accuracy_by_step": [1.5]}, "accuracy_by_step"),
        ({"simulated_acceptance_length": 2, "curves": {"loss": [1.0]}}, "curves"),
        ({"simulated_acceptance_length": 2, "curves": {"step": [1], "loss": [1.0, 2.0]}}, "curves"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, content, named):
    with pytest.raises(ValueError, match=named):
        read_simulated(written(tmp_path, **content))
    with pytest.raises(ValueError, match="nothing"):
        read_simulated(tmp_path / "nothing.json")
