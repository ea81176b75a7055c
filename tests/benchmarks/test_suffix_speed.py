from __future__ import annotations

import json
from pathlib import Path

from benchmarks.suffix_speed import main


def test_a_small_run_tells_everything(tmp_path: Path, capsys) -> None:
    output = tmp_path / "speed.json"
    assert main(["--requests", "10", "--prompt", "100", "--response", "60", "--output", str(output)]) == 0
    content = json.loads(output.read_text())
    assert content["memory"]["cached tokens"] == 1600
    measured = {row["microseconds"] for row in content["times"]}
    assert measured >= {"speculate, path", "speculate, tree", "piece of caching", "piece of eviction", "ngram: propose"}
    assert content["found"]["match length"] > 0
    assert "piece of eviction" in capsys.readouterr().out
