"""Layouts of prompts in public files."""

from __future__ import annotations

import gzip
import json
import lzma

import pytest

from training.prompts.records import (
    RecordError,
    Turn,
    conversation_key,
    input_files,
    read_lines,
    read_prompt,
    read_recording,
)


def read(record, field=None):
    return read_prompt(json.dumps(record).encode(), "file:1", field)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"prompt": " Hello\u2028there "}, ["Hello\u2028there"]),
        ({"text": "A story."}, ["A story."]),
        ({"question": "Why?"}, ["Why?"]),
        ({"instruction": "Translate.", "input": "Guten Tag"}, ["Translate.\n\nGuten Tag"]),
        ({"instruction": "Translate.", "input": " "}, ["Translate."]),
        ({"turns": ["One", "Two"]}, ["One\n\nTwo"]),
        ({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]}, ["Hi"]),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "In parts"}]}]}, ["In parts"]),
    ],
)
def test_common_layouts_are_found(record, said):
    assert [turn.content for turn in read(record).turns] == said


def test_assistants_words_are_left_out_and_what_follows_directly_is_one_turn():
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One"},
        {"role": "user", "content": "and a half"},
        {"role": "assistant", "content": "?"},
        {"role": "user", "content": "Two"},
    ]
    turns = read({"messages": messages}).turns
    assert turns == (Turn("system", "Be brief."), Turn("user", "One\n\nand a half"), Turn("user", "Two"))


@pytest.mark.parametrize(
    "cut",
    [
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]},
        {"role": "user", "content": [{"type": "image_url"}]},
        {"role": "assistant", "content": None},
    ],
)
def test_a_conversation_is_cut_where_it_is_more_than_text(cut):
    messages = [{"role": "user", "content": "One"}, cut, {"role": "user", "content": "Two"}]
    assert [turn.content for turn in read({"messages": messages}).turns] == ["One"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"answer": "x"}', "no prompt in it"),
        (b'{"messages": [{"role": "system", "content": "x"}]}', "no user's message"),
        (b'{"prompt": 3}', "neither text nor messages"),
    ],
)
def test_a_line_without_a_prompt_says_why(line, reason):
    with pytest.raises(RecordError, match=reason):
        read_prompt(line, "file:1")


def test_a_named_field_is_the_one_that_counts():
    record = {"prompt": "wrong", "query": "right", "category": "", "task": "sums"}
    assert read(record, "query").turns == (Turn("user", "right"),)
    assert read(record, "query").category == "sums"
    with pytest.raises(RecordError, match="no field 'other'"):
        read(record, "other")


def test_keys_tell_turns_apart():
    keys = {
        conversation_key(turns)
        for turns in (
            [Turn("user", "ab")],
            [Turn("system", "ab")],
            [Turn("user", "a"), Turn("user", "b")],
            [Turn("user", "\ud800")],
        )
    }
    assert len(keys) == 4


def test_folders_are_searched_and_lines_split_on_the_newline_byte_alone(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.jsonl").write_text('{"text": "x\u2028y"}\n\n{"text": "z"}\n', encoding="utf-8")
    (tmp_path / "sub" / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "1"}\n{"text": "2"}'))
    (tmp_path / "notes.txt").write_text("no")
    files = input_files([tmp_path, tmp_path / "notes.txt"])
    assert [file.name for file in files] == ["b.jsonl", "a.jsonl.gz", "notes.txt"]
    assert [number for number, _ in read_lines(files[0])] == [1, 3]
    assert [number for number, _ in read_lines(files[1], skip=1)] == [2]
    with pytest.raises(ValueError, match="no such file"):
        input_files([tmp_path / "missing"])


def recorded(record, field=None):
    return [(turn.role[0], turn.content) for turn in read_recording(json.dumps(record).encode(), "file:1", field).turns]


@pytest.mark.parametrize(
    ("record", "turns"),
    [
        ({"text": " As it is.\n"}, [("t", " As it is.\n")]),
        ({"question": "2+2?", "answer": "4"}, [("u", "2+2?"), ("a", "4")]),
        ({"instruction": "Add.", "input": "2 2", "output": " 4 "}, [("u", "Add.\n\n2 2"), ("a", "4")]),
        (
            {
                "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}],
                "system": "Be brief.",
            },
            [("s", "Be brief."), ("u", "Hi"), ("a", "Ho")],
        ),
    ],
)
def test_recordings_keep_what_assistants_said(record, turns):
    assert recorded(record) == turns


def test_a_recording_ends_with_its_last_answer_and_before_an_empty_one():
    said = [("user", "One"), ("assistant", "1"), ("assistant", "!"), ("user", "Two"), ("user", "and?")]
    messages = [{"role": role, "content": content} for role, content in said]
    whole = [("u", "One"), ("a", "1\n\n!")]
    assert recorded({"messages": messages}) == whole
    more = [
        {"role": "assistant", "content": " "},
        {"role": "user", "content": "3"},
        {"role": "assistant", "content": "3"},
    ]
    assert recorded({"messages": messages + more}) == whole
    assert recorded({"messages": messages + more[2:]}) == [*whole, ("u", "Two\n\nand?"), ("a", "3")]


@pytest.mark.parametrize(
    "record", [{"prompt": "Hi"}, {"messages": [{"role": "assistant", "content": "Hi"}]}, {"turns": ["One", "Two"]}]
)
def test_without_an_answer_there_is_no_recording(record):
    with pytest.raises(RecordError, match="no assistant's message"):
        recorded(record)


def test_files_are_read_compressed(tmp_path):
    (tmp_path / "a.jsonl.xz").write_bytes(lzma.compress(b"1\n\n2\n"))
    assert list(read_lines(*input_files([tmp_path]))) == [(1, b"1\n"), (3, b"2\n")]
