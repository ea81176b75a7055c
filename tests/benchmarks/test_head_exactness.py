"""A small run on the CPU, which is exact, and one whose answers are spoilt, which says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import head_exactness
from benchmarks.local_engine.local_loop import LocalLoop
from support.eagle_heads import EAGLE3, Shape, write_head
from verify_service.speculation.tree_sizing import TreeSizer

PROMPTS = Path(__file__).parents[1] / "data" / "prompts.jsonl"


@pytest.mark.parametrize(("device", "spoilt"), [("cpu", False), ("cpu-twins", False), ("cpu-twins", True)])
def test_answers_are_compared(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, spoilt: bool
) -> None:
    run = LocalLoop.run

    def spoil(self, jobs, concurrency, **options):
        answers = run(self, jobs, concurrency, **options)
        if jobs[0].proposer:
            answers[-1].token_ids[-1] ^= 1
        return answers

    if spoilt:
        monkeypatch.setattr(LocalLoop, "run", spoil)
    config = json.loads((tiny_model / "config.json").read_text())
    shape = Shape(config["hidden_size"], 96, 4, 2, config["vocab_size"])
    write_head(tmp_path / "head", EAGLE3["whole vocabulary"], shape)
    arguments = ["--model", str(tiny_model), "--head", str(tmp_path / "head"), "--device", device, "--limit", "3"]
    arguments += ["--prompts", str(PROMPTS), "--tokens", "12", "--longest", "200", "--rows", "8", "--concurrency", "2"]
    arguments += ["--settings", "num_steps=3:topk=2:boundaries=0-1-2"]
    assert head_exactness.main([*arguments, "--output", str(tmp_path / "out.json")]) == spoilt
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [(row["temperature"], row["at once"]) for row in rows] == [(0.0, 1), (0.0, 2), (0.8, 1), (0.8, 2)]
    assert [row["differ"] for row in rows] == [int(spoilt)] * 4
    assert sum(row["accepted"] for row in rows) > 0
    assert not any(row["with trees of the device"] for row in rows)
    if not spoilt:
        depths = TreeSizer.depths
        assert head_exactness.main([*arguments, "--random-budgets", "1"]) == 0
        assert TreeSizer.depths is depths


@pytest.mark.parametrize(("handed", "status"), [((0, 0), 1), ((0, 3), 0)])
def test_on_a_gpu_trees_must_have_been_handed_over_there(
    monkeypatch: pytest.MonkeyPatch, handed: tuple[int, ...], status: int
) -> None:
    rows = [{"differ": 0, "with trees of the device": count} for count in handed]
    monkeypatch.setattr(head_exactness, "compare", lambda _: rows)
    assert head_exactness.main(["--prompts", str(PROMPTS)]) == status
