import gzip
import json
from pathlib import Path

import pytest

from benchmarks.lib.prompts import PromptFileError, by_category, load_prompts, spread

OWN = Path(__file__).parents[2] / "data" / "prompts.jsonl"


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


def test_questions_without_a_category_are_grouped_by_their_task_or_file(tmp_path):
    path = write(tmp_path / "q.jsonl", {"id": "gsm8k/1", "task": "math", "turns": ["a"]}, {"turns": ["b"]})
    assert [(p.name, p.category) for p in load_prompts(path)] == [("gsm8k/1", "multi-turn conversation"), ("2", "q")]


def test_conversations_are_grouped_by_source_and_task():
    prompts = load_prompts(OWN)
    assert {p.category for p in prompts} == {"own facts", "own sums", "own stories", "own code", "own copying"}
    assert prompts[2].messages[0][0] == "system"


def test_lines_end_at_the_newline_byte_only(tmp_path):
    path = write(tmp_path / "q.jsonl", {"question_id": 1, "category": "qa", "turns": ["a\u2028b"]})
    assert load_prompts(path)[0].messages == (("user", "a\u2028b"),)


def test_anything_else_is_refused(tmp_path):
    with pytest.raises(PromptFileError, match="record 1"):
        load_prompts(write(tmp_path / "q.jsonl", {"text": "x"}))


def test_every_turn_of_a_run_is_a_prompt_and_tools_speak_as_users(tmp_path):
    said = [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "look"}}]},
        {"role": "tool", "content": "seen"},
        {"role": "assistant", "content": "done"},
    ]
    path = tmp_path / "runs.json.gz"
    runs = [{"task_id": task, "traj": said} for task in (1, 0, 1)]
    path.write_bytes(gzip.compress(json.dumps(runs).encode()))
    prompts = load_prompts(path)
    assert [p.name for p in prompts] == ["2.2", "2.4", "1.2", "1.4", "3.2", "3.4"], "runs of a task follow one another"
    assert {p.category for p in prompts} == {"runs"}
    assert prompts[1].messages == (
        ("system", "rules"), ("user", "go"), ("assistant", '[{"name": "look"}]'), ("user", "seen")
    )  # fmt: skip


def test_runs_as_text_as_one_file_and_as_three_texts(tmp_path):
    display = {"messages_display": "user: Hi\nthere\nassistant: Hello\nuser: Bye\nassistant: None"}
    (_, last) = load_prompts(write(tmp_path / "a.jsonl", display))
    assert last.messages == (("user", "Hi\nthere"), ("assistant", "Hello"), ("user", "Bye"))
    (tmp_path / "b.traj").write_text(
        json.dumps({"history": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, indent=1)
    )
    (only,) = load_prompts(tmp_path / "b.traj")
    assert only.messages == (("user", "a"),)
    texts = {"system_prompt": "s", "human_message": "h", "system_response": "r"}
    (only,) = load_prompts(write(tmp_path / "c.jsonl", {"path": "x", "content": texts}))
    assert only.messages == (("system", "s"), ("user", "h"))


def test_queries_are_asked_for_with_what_is_known_of_the_database(tmp_path):
    (tmp_path / "q.csv").write_text('question,query,db_name,instructions\n"How many, please?",SELECT 1,shop,Use LIKE\n')
    (prompt,) = load_prompts(tmp_path / "q.csv")
    assert prompt.messages[0][1] == "Database shop\nUse LIKE\n\nWrite an SQL query: How many, please?"
    columns = [[-1, "*"], [0, "id"], [1, "day"], [0, "name"]]
    shop = {"db_id": "shop", "table_names_original": ["goods", "sales"], "column_names_original": columns}
    (tmp_path / "spider_tables.json").write_text(json.dumps([shop]))
    (prompt,) = load_prompts(tmp_path / "q.csv")
    assert prompt.messages[0][1].startswith("Database shop\ngoods(id, name)\nsales(day)\nUse LIKE")


def test_edits_are_spread_over_their_kinds(tmp_path):
    edits = [{"id": i, "kind": f"k{i % 2}", "prompt": f"edit {i}", "reference": "x"} for i in range(6)]
    assert {p.category for p in load_prompts(write(tmp_path / "e.jsonl", *edits), limit=2)} == {"k0", "k1"}


@pytest.mark.parametrize("count", [1, 3, 7, 12, 50])
def test_spread_takes_all_categories_alike(tmp_path, count):
    records = [{"question_id": i, "category": f"c{i % 3}", "turns": ["x"]} for i in range(30)]
    prompts = load_prompts(write(tmp_path / "q.jsonl", *records))
    chosen = spread(prompts, count)
    sizes = [len(group) for group in by_category(chosen).values()]
    assert len(chosen) == min(count, 30)
    assert max(sizes) - min(sizes) <= 1
    assert [p.name for p in chosen] == sorted((p.name for p in chosen), key=int)
