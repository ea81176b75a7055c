"""The matrix of structured answers in small, through real services: all cells, and twenty kills in the middle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.structured import __main__ as command
from support.forked_services import ForkingSpawner


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_answer_is_plain_constrained_decodings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "structured.json"
    options = ["--schemas", "10", "--tools", "4", "--kills", "20", "--tokens", "48", "--seed", "5", "--fresh"]
    arguments = [*options, "--output", str(output)]
    assert command.main(arguments, ForkingSpawner()) == 0, capsys.readouterr().out
    content = json.loads(output.read_text("utf-8"))
    assert len(content["cells"]) == 48 and not content["failures"]
    assert content["kills"]["kills"] == 20
