"""`slipstream train features` as a command."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from support.features import write_answers
from training.cli import app
from training.features.dataset import FeatureSet


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    return write_answers(tmp_path / "answers", (30, 12))


def command(answers: Path, model: Path, *more: str):
    out = str(answers.with_name("out"))
    given = ["features", str(answers), "--model", str(model), "--out", out, "--threads", "1", *more]
    return CliRunner().invoke(app, given)


def test_it_tells_what_it_would_write_then_writes_it(answers: Path, tiny_model: Path) -> None:
    told = command(answers, tiny_model, "--boundaries", "1,3", "--dry-run")
    assert told.exit_code == 0, told.output
    assert "2 sequences of 42 tokens, 2 of them to learn from" in told.output
    assert "boundaries 1, 3 of 128 numbers: 512 bytes a token" in told.output
    assert not answers.with_name("out").exists()
    done = command(answers, tiny_model, "--boundaries", "1,3")
    assert done.exit_code == 0, done.output
    assert "42 tokens of 2 sequences" in done.output
    assert done.output.startswith("2 sequences of 42 tokens")
    assert f"{FeatureSet(answers.with_name('out')).index['shards'][0]['bytes'] / 1024:.1f} KiB" in told.output


def test_restart_throws_away_only_what_can_be_made_anew(answers: Path, tiny_model: Path) -> None:
    assert command(answers, tiny_model, "--boundaries", "1,3").exit_code == 0
    assert command(answers, tiny_model, "--boundaries", "1,9", "--restart").exit_code == 2
    assert len(FeatureSet(answers.with_name("out"))) == 2
    assert command(answers, tiny_model, "--boundaries", "1,2").exit_code == 2
    assert command(answers, tiny_model, "--boundaries", "1,2", "--restart").exit_code == 0
    assert FeatureSet(answers.with_name("out")).boundaries == (1, 2)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--boundaries", "1,x"), "--boundaries are '1,x'"),
        (("--boundaries", "1", "--longer", "keep"), "longer is 'keep'"),
        ((), "too shallow for EAGLE-3's boundaries"),
        (("--boundaries", "1", "--device", "tpu"), "device is 'tpu'"),
    ],
)
def test_what_does_not_fit_is_refused(answers: Path, tiny_model: Path, more: tuple[str, ...], message: str) -> None:
    refused = command(answers, tiny_model, *more)
    assert refused.exit_code == 2
    assert message in " ".join(refused.output.replace("│", " ").split())


def test_a_disk_that_is_too_small_is_told(answers: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _place: SimpleNamespace(free=1000))
    told = command(answers, tiny_model, "--boundaries", "1", "--dry-run")
    assert (told.exit_code, "1000 B free: NOT ENOUGH" in told.output) == (1, True)
    refused = command(answers, tiny_model, "--boundaries", "1")
    assert (refused.exit_code, "not enough disk" in refused.output) == (2, True)
