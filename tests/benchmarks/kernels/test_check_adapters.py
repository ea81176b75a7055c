from __future__ import annotations

import json
from pathlib import Path

from benchmarks.kernels.check_adapters import SMALL, Scene, differing, main


def test_small_layers_are_compared(tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    assert main(["--small", "--adapters", "2", "--rank", "8", "--output", str(output)]) == 0
    found = json.loads(output.read_text())["results"]
    assert [(each["layer"], each["rows"]) for each in found] == [
        (layer, rows) for layer in ("qkv", "o", "gate_up") for rows in (2, 33)
    ]


def test_a_difference_is_counted() -> None:
    scene = Scene(SMALL[1], 3, 2, 8, 1, "cpu", exact=True)
    assert differing(scene) == 0
    together = scene.together

    def wrong(copy: int = 0) -> None:
        together(copy)
        scene.out[0, 0] += 1

    scene.together = wrong  # type: ignore[method-assign]
    assert differing(scene) == 1
