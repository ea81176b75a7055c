from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.proposers.workloads import MIXED, WORKLOADS, Row, load_rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    questions = [{"question_id": i, "category": f"c{i % 2}", "turns": ["x" * (i + 1)]} for i in range(12)]
    edits = [{"kind": "k", "prompt": f"edit {i}", "reference": "y"} for i in range(9)]
    queries = [{"db_id": "shop", "question": str(i), "query": "z"} for i in range(9)]
    texts = {"spec_bench_question.jsonl": questions, "code_edit_derived.jsonl": edits}
    for name, records in texts.items():
        (tmp_path / name).write_text("\n".join(map(json.dumps, records)))
    first, second = WORKLOADS["sql"].files
    (tmp_path / first).write_text("question,query,db_name\n" + "".join(f"{i},z,bank\n" for i in range(9)))
    (tmp_path / second).write_bytes(gzip.compress(json.dumps(queries).encode()))
    return tmp_path


def test_rows_are_categories_or_whole_workloads(folder):
    rows = load_rows(folder, ["spec-bench", "code-edits", "sql", MIXED], 4, 1000)
    assert [(row.workload, row.category, len(row.prompts)) for row in rows] == [
        ("spec-bench", "c0", 4),
        ("spec-bench", "c1", 4),
        ("code-edits", "all", 4),
        ("sql", "all", 4),
        (MIXED, "all", 8),
    ]
    everything = [prompt for row in rows[:-1] for prompt in row.prompts]
    assert set(rows[-1].prompts) < set(everything)
    assert load_rows(folder, ["spec-bench", "code-edits", "sql", MIXED], 4, 1000) == rows


def test_long_prompts_are_left_out(folder):
    (row, _) = load_rows(folder, ["spec-bench"], 100, 6)
    assert sorted(len(prompt.messages[0][1]) for prompt in row.prompts) == [1, 3, 5]


def test_prompts_that_share_contexts_are_the_first_of_each_file(folder):
    (row,) = load_rows(folder, ["sql"], 4, 1000)
    assert isinstance(row, Row)
    asked = [prompt.messages[0][1].split() for prompt in row.prompts]
    assert [(words[1], words[-1]) for words in asked] == [("bank", "0"), ("bank", "1"), ("shop", "0"), ("shop", "1")]


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_rows(tmp_path, ["in-domain"], 1, 1)
