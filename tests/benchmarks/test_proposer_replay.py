from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from benchmarks.lib.repository import DEMO_MODEL
from benchmarks.proposer_replay import Request, main, read, replay

TOKENIZER = DEMO_MODEL / "tokenizer.json"


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("\n".join(json.dumps({"question": f"What is {i}?", "answer": f"It is {i}."}) for i in range(6)))
    trips = tmp_path / "trips.json.gz"
    said = [{"role": "user", "content": "go on"}, {"role": "assistant", "tool_calls": [{"function": {"name": "go"}}]}]
    trips.write_bytes(gzip.compress(json.dumps([{"traj": said * 2}] * 2).encode()))
    return [pairs, trips]


def test_what_is_read(files) -> None:
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    pairs, trips = (read(path, tokenizer, 100) for path in files)
    assert (len(pairs), len(trips)) == (6, 4)
    assert tokenizer.decode(pairs[2].answer).strip() == "It is 2."
    assert trips[1].prompt[: len(trips[0].prompt)] == trips[0].prompt
    assert len(read(files[0], tokenizer, 3)) == 3
    files[0].write_text('{"x": 1}')
    with pytest.raises(KeyError):
        read(files[0], tokenizer, 3)


def test_an_answer_that_is_known_is_accepted() -> None:
    known = Request([1, 2, *range(10, 60)], list(range(10, 60)))
    tokens, nodes = replay(("ngram",), [known], 9)
    assert tokens > 5 and 0 < nodes <= 8
    fresh = Request([1, 2], list(range(10, 60)))
    assert replay(("suffix",), [fresh], 9) == (1.0, 0.0)
    again, _ = replay(("suffix", "ngram", "hybrid"), [fresh, fresh], 9)
    assert again > 1.5, "the first answer is a past response of the second request"


def test_the_table(files, tmp_path, capsys) -> None:
    output = tmp_path / "out.json"
    assert main([*map(str, files), "--rows", "5", "--limit", "4", "--output", str(output)]) == 0
    rows = json.loads(output.read_text())["tokens_a_step"]
    assert [(row["workload"], row["answers"]) for row in rows] == [("pairs", 4), ("trips", 4), ("mixed", 8)]
    assert "hybrid of both" in capsys.readouterr().out
