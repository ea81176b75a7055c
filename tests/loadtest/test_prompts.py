from __future__ import annotations

import json

import pytest

from loadtest.prompts import QUESTIONS, load_prompts


def test_three_kinds_of_lines(tmp_path):
    file = tmp_path / "prompts.jsonl"
    lines = [{"messages": [{"role": "user", "content": "a", "extra": 1}]}, {"turns": ["b", "c"]}, {"prompt": "d"}]
    file.write_text("\n".join(json.dumps(line) for line in lines))
    assert [conversation[0]["content"] for conversation in load_prompts(file)] == ["a", "b", "d"]


def test_a_line_without_a_question_is_named(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a"}\n{"text": "b"}\n')
    with pytest.raises(ValueError, match="line 2"):
        load_prompts(file)


def test_separators_of_lines_within_a_prompt_end_no_line(tmp_path):
    file = tmp_path / "prompts.jsonl"
    text = "a\u2028b\x85c\x0cd"
    file.write_text(json.dumps({"prompt": text}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert [conversation[0]["content"] for conversation in load_prompts(file)] == [text]


def test_own_questions_without_a_file():
    assert len(load_prompts(None)) == len(QUESTIONS)
