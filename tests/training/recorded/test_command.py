"""`slipstream train recorded`."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from training.cli import app


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["recorded", "--workers", "1", *map(str, arguments)])


def test_it_tells_what_it_has_written_and_what_it_has_left_out(demo_model: Path, tmp_path: Path) -> None:
    lines = [{"question": "2+2?", "answer": "4"}, {"question": "3+3?"}, {"text": "a <|end|>"}]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    done = run(tmp_path, "--model", demo_model, "--out", tmp_path / "out", "--max-tokens", 64)
    assert done.exit_code == 0, done.output
    assert "1 of 3 lines" in done.output
    assert "dropped: no assistant's message that answers a user's 1, special tokens in the text 1" in done.output
    again = run(tmp_path, "--model", demo_model, "--out", tmp_path / "out")
    assert again.exit_code == 2
    assert "with another" in again.output


def test_nothing_to_learn_from_is_no_success(demo_model: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "Hi"}')
    done = run(tmp_path, "--model", demo_model, "--out", tmp_path / "out")
    assert (done.exit_code, "0 sequences" in done.output) == (1, True)
