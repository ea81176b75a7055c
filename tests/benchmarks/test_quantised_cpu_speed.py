"""A trial with a small model: every form is measured, and fewer bits are fewer bytes."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import quantised_cpu_speed
from benchmarks.quantised_cpu_speed import FORMATS, ROWS


def test_every_form_is_measured_beside_bfloat16(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    arguments = ["--tiny", "--rounds", "1", "--repeats", "1", "--work", str(tmp_path), "--output", str(output)]
    assert quantised_cpu_speed.main(arguments) == 0
    rows = json.loads(output.read_text())["rows"]
    assert {(row["weights"], row["rows"]) for row in rows} == {(name, n) for name in ("bf16", *FORMATS) for n in ROWS}
    sizes = {row["weights"]: row["GB of layers"] for row in rows}
    assert sizes["fp8"] < 0.55 * sizes["bf16"]
    assert sizes["w4a16"] < 0.31 * sizes["bf16"]
    assert all(row["x bf16"] == 1.0 for row in rows if row["weights"] == "bf16")
