"""`slipstream train fit` as a command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from support.features import conversation
from training.answers.dataset import write_set
from training.cli import app


def stage(*arguments: object) -> str:
    """Run a command; it must succeed."""
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    assert done.exit_code == 0, f"{done.output}\n{done.exception!r}"
    return done.output


def test_a_head_is_the_same_with_features_on_disk_and_without(tiny_model: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    texts = [random.integers(3, 512, length).tolist() for length in (30, 17, 600)]
    records = [conversation(number, text, produced=12) for number, text in enumerate(texts)]
    answers, features = tmp_path / "answers", tmp_path / "features"
    answers.mkdir()
    write_set(answers, records, {"summary": {}}, 10)
    stage("features", answers, "--model", tiny_model, "--out", features, "--boundaries", "0,1,2,3", "--threads", "1")
    shape = ("--boundaries", "0,1,2", "--unroll", "2", "--draft-vocab", "64", "--batch-rows", "1", "--epochs", "2")
    more = (*shape, "--lr", "1e-3", "--device", "cpu", "--no-check-labels")  # which the target did not write
    for name, source in (("disk", ("--features", features)), ("online", ("--answers", answers, "--model", tiny_model))):
        told = stage("fit", *source, "--heldout", source[1], "--out", tmp_path / name, *more)
        assert "acceptance length" in told and "simulated on held-out" in told
    disk, online = ({path.name: path.read_bytes() for path in (tmp_path / each / "head").iterdir()}
                    for each in ("disk", "online"))  # fmt: skip
    assert disk == online
    manifests = [json.loads((tmp_path / each / "manifest.json").read_bytes()) for each in ("disk", "online")]
    assert manifests[0]["heldout"] == manifests[1]["heldout"]
    assert manifests[0]["head"]["heldout_coverage"] is not None
