"""`slipstream train` becomes the stage that is asked for."""

from __future__ import annotations

import json
import subprocess
import sys


def train(*arguments, cwd=None):
    command = [sys.executable, "-m", "launcher", "train", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100, cwd=cwd)


def test_help_is_that_of_the_stages():
    for arguments in ((), ("--help",)):
        run = train(*arguments)
        assert "slipstream train" in run.stdout
        assert "prompts" in run.stdout
    assert "--phone-regions" in train("prompts", "--help").stdout


def test_options_and_status_pass_through(tmp_path):
    (tmp_path / "in.jsonl").write_text(json.dumps({"prompt": "A prompt"}) + "\n")
    done = train("prompts", str(tmp_path / "in.jsonl"), "--out", str(tmp_path / "out"), "--kinds", "none")
    assert done.returncode == 0, done.stderr
    assert "kept 1 of 1 prompts" in done.stdout
    (tmp_path / "none.jsonl").write_text("{}\n")
    empty = train("prompts", str(tmp_path / "none.jsonl"), "--out", str(tmp_path / "none"), "--kinds", "none")
    assert empty.returncode == 1
    wrong = train("prompts", str(tmp_path / "missing"), "-o", str(tmp_path / "wrong"))
    assert wrong.returncode == 2
    assert "Invalid value" in wrong.stderr


def test_answers_say_what_they_write():
    assert "--retry-failed" in train("answers", "--help").stdout
