from __future__ import annotations

import json
from pathlib import Path

from benchmarks.local_engine.local_loop import Answer
from benchmarks.quantised_speed import compare, main
from slipstream.generation_types import Usage


def test_a_small_model_answers_as_what_it_decodes_to(tmp_path: Path) -> None:
    assert main(["--tiny", "--device", "cpu", "--formats", "w4a16", "--output", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())["results"]["w4a16"]
    assert found["comparison"]["tokens"] == 36 and found["comparison"]["accepted"] > 0
    assert found["packed"]["weights GB"] < found["decoded"]["weights GB"]
    assert [row["batch"] for row in found["packed"]["steps"]] == [1, 3]


def test_differences_are_counted() -> None:
    usage = Usage(1, 2, 0, 2, 4, 3)
    expected = {(0, 0.0, ""): Answer([1, 2], usage=usage)}
    got = {(0, 0.0, "oracle"): Answer([1, 3], usage=usage), (0, 0.0, ""): Answer([1, 2], usage=usage)}
    count = compare(got, expected)
    assert (count["different ids"], count["tokens"], count["accepted"]) == (1, 4, 6)
