from __future__ import annotations

import json
from pathlib import Path

from benchmarks.proposers.__main__ import SETS, main, parsed


def test_sets_name_the_folders() -> None:
    for name in SETS:
        options = parsed(["--prompts", "p", "--set", name, "--draft-model", "/d"])
        assert not [spec for spec in options.draft if "{" in spec]
        assert any("/d" in spec for spec in options.draft)
    (head,) = [spec for spec in parsed(["--prompts", "p", "--head", "/h", "--model", "/m"]).draft if "eagle3" in spec]
    assert head.startswith("eagle3:/h:target=/m:")
    given = parsed(["--prompts", "p", "--draft", "ngram", "--temperatures", "0.5", "--topk", "2,3"])
    assert (given.draft, given.temperatures, given.topk, given.max_nodes) == (["ngram"], [0.5], (2, 3), 16)


def test_services_are_measured(tiny_model, tiny_draft_model, tmp_path: Path, capsys) -> None:
    questions = [{"question_id": i, "category": f"c{i % 2}", "turns": [f"What is {i}?"]} for i in range(4)]
    (tmp_path / "spec_bench_question.jsonl").write_text("\n".join(map(json.dumps, questions)))
    output = tmp_path / "out.json"
    models = ["--model", str(tiny_model), "--draft-model", str(tiny_draft_model), "--pages", "512"]
    arguments = ["--prompts", str(tmp_path), "--set", "coupling", "--limit", "2", "--tokens", "9", *models]
    assert main([*arguments, "--output", str(output)]) == 0
    cells = {(c["category"], c["setting"]): c for c in json.loads(output.read_text())["cells"]}
    assert len(cells) == 3 * 4
    for setting in ("chain", "chain-uncoupled", "tree", "tree-uncoupled"):
        parts, total = (cells["c0", setting], cells["c1", setting]), cells["all", setting]
        for key in ("answers", "tokens", "decode_steps", "drafted", "accepted", "steps"):
            assert total[key] == sum(part[key] for part in parts) > (0 if key != "accepted" else -1)
        assert total["seconds"] > 0 and total["draft_ms"] > 0
    assert cells["all", "tree"]["drafted"] > cells["all", "chain"]["drafted"]
    assert "tree, coupled" in capsys.readouterr().out
