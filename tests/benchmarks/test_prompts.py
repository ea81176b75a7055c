import json
from pathlib import Path

import pytest

from benchmarks.prompts import PromptFileError, by_category, load_prompts, spread

OWN = Path(__file__).parents[1] / "data" / "prompts.jsonl"


def write(path, *records):
    path.write_text("\n".join(json.dumps(record, ensure_ascii=False) for record in records) + "\n", encoding="utf-8")
    return path


def test_questions_take_their_first_turn_and_mt_bench_categories_are_one(tmp_path):
    path = write(
        tmp_path / "q.jsonl",
        {"question_id": 81, "category": "writing", "turns": ["first", "second"]},
        {"question_id": 82, "category": "rag", "turns": ["only"]},
    )
    prompts = load_prompts(path)
    assert [(p.name, p.category, p.messages) for p in prompts] == [
        ("81", "multi-turn conversation", (("user", "first"),)),
        ("82", "rag", (("user", "only"),)),
    ]


def test_conversations_are_grouped_by_source_and_task():
    prompts = load_prompts(OWN)
    assert {p.category for p in prompts} == {"own facts", "own sums", "own stories", "own code", "own copying"}
    assert prompts[2].messages[0][0] == "system"


def test_lines_end_at_the_newline_byte_only(tmp_path):
    path = write(tmp_path / "q.jsonl", {"question_id": 1, "category": "qa", "turns": ["a\u2028b"]})
    assert load_prompts(path)[0].messages == (("user", "a\u2028b"),)


def test_anything_else_is_refused(tmp_path):
    with pytest.raises(PromptFileError, match="line 1"):
        load_prompts(write(tmp_path / "q.jsonl", {"text": "x"}))


@pytest.mark.parametrize("count", [1, 3, 7, 12, 50])
def test_spread_takes_all_categories_alike(tmp_path, count):
    records = [{"question_id": i, "category": f"c{i % 3}", "turns": ["x"]} for i in range(30)]
    prompts = load_prompts(write(tmp_path / "q.jsonl", *records))
    chosen = spread(prompts, count)
    sizes = [len(group) for group in by_category(chosen).values()]
    assert len(chosen) == min(count, 30)
    assert max(sizes) - min(sizes) <= 1
    assert [p.name for p in chosen] == sorted((p.name for p in chosen), key=int)
