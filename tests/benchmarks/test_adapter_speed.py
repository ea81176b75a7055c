from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.adapter_speed import main


def test_a_small_model_keeps_its_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "found.json"
    assert main(["--tiny", "--device", "cpu", "--rank", "8", "--output", str(output)]) == 0
    found = json.loads(output.read_text())["results"]
    assert found["bits"] == {"rows": 4, "differing": 0, "differing without": 0, "without effect": 0}
    assert [(row["batch"], row["adapters"]) for row in found["speed"]] == [(1, 1), (4, 1), (4, 3)]
    assert [row["of launches"] for row in found["speed"][:2]] == [1, 1]
    assert all(row["ratio"] == row["ms"] / row["none ms"] for row in found["speed"])
    stalls = found["stalls"]
    assert stalls["loads"] >= 1
    assert stalls["longest ms"] >= stalls["median ms"] > 0
    assert stalls["longest ms while loading"] >= stalls["median ms while loading"] > 0
    told = capsys.readouterr().err.splitlines()
    assert [line for line in told if line.endswith("...")][-3:] == ["bits ...", "speed ...", "stalls ..."]
