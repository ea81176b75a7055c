"""However an answer is cut into steps, clients are told the same."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.openai.answer_parts import StreamedCalls, deltas, message
from gateway.output_parsers.parts import joined
from gateway.output_parsers.registry import FORCED, AnswerForm, ReasoningParserName, ToolParserName, new_parser
from support.parsed_answers import RECORDED, answer_of, cut, form, parts_of, read

FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<think>", "</think>", "<function=add>", "<function=", "<parameter=a>",
    "</parameter>", "</function>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "<|channel|>", "analysis", "final",
    "commentary to=functions.f ", "<|message|>", "<|end|>", "<|start|>", "assistant", '{"name": "add", "arguments": ',
    '{"name": "add"', '"parameters"', '{"a": 1}', "{}", "[", "]", "{", "}", "(", ")", "add(a=", "get_weather", "'x'",
    '"', "\\", ",", ";", ":", "=", "1", "None", " ", "\n", "é", "text", "<", "</", "<|", "null",
]  # fmt: skip


def test_every_parser_has_recorded_answers() -> None:
    forms = [shape.names for shape, _, _ in RECORDED.values()]
    assert {names.tools for names in forms} - {None} == {*get_args(ToolParserName), FORCED}
    assert {names.reasoning for names in forms} - {None} == {*get_args(ReasoningParserName)}


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_deltas_of_any_cuts_join_to_the_message(data: st.DataObject) -> None:
    """As the official client joins them: strings are appended, an index says of which call; custom tools, too."""
    name = data.draw(st.sampled_from(list(RECORDED)))
    places = data.draw(st.lists(st.integers(0, 1000), max_size=20))
    shape, text, answer = RECORDED[name]
    custom = data.draw(st.sampled_from([frozenset[str](), frozenset({"add"})]))
    shape = replace(shape, custom=custom)
    parser, streamed = new_parser(shape), StreamedCalls(shape)
    steps = [parser.push(piece) for piece in cut(text, places)]
    steps.append(parser.finish())
    whole = message([part for step in steps for part in step], shape, ["reasoning"])
    joined_text, joined_reasoning, calls = "", "", dict[int, dict[str, str]]()
    for number, step in enumerate(steps):
        for delta in deltas(step, shape, streamed, ["reasoning"], last=number == len(steps) - 1):
            joined_text += delta.get("content", "")
            joined_reasoning += delta.get("reasoning", "")
            for entry in delta.get("tool_calls", ()):
                call = calls.setdefault(entry["index"], {"type": "", "name": "", "given": ""})
                given_by = entry.get("function") or entry.get("custom")
                call["type"] += entry.get("type", "")
                call["name"] += given_by.get("name", "")
                call["given"] += given_by.get("arguments", given_by.get("input", ""))
    assert list(calls) == list(range(len(answer.calls)))
    assert (joined_text, joined_reasoning) == (answer.content, answer.reasoning)
    assert [(call["name"], call["given"]) for call in calls.values()] == [
        (entry[entry["type"]]["name"], entry[entry["type"]]["arguments" if entry["type"] == "function" else "input"])
        for entry in whole.get("tool_calls", ())
    ]
    assert [call["type"] for call in calls.values()] == [
        "custom" if name in custom else "function" for name, _ in answer.calls
    ]


@pytest.mark.parametrize("name", RECORDED)
def test_every_cut_in_two_gives_the_recorded_answer(name: str) -> None:
    shape, text, answer = RECORDED[name]
    whole = joined(parts_of(shape, [text]))
    for place in range(len(text) + 1):
        parts = parts_of(shape, cut(text, [place]))
        assert answer_of(parts) == answer
        assert joined(parts) == whole


@pytest.mark.parametrize("name", RECORDED)
@given(places=st.lists(st.integers(0, 1000), max_size=40))
@settings(max_examples=40, deadline=None)
def test_any_cuts_give_the_recorded_answer(name: str, places: list[int]) -> None:
    shape, text, answer = RECORDED[name]
    assert answer_of(parts_of(shape, cut(text, places))) == answer


@pytest.mark.parametrize("name", RECORDED)
def test_an_answer_that_is_cut_off_says_the_beginning_of_what_it_would_have(name: str) -> None:
    shape, text, answer = RECORDED[name]
    for end in range(len(text)):
        part = read(shape, text[:end])
        for (called, arguments), (whole_name, whole) in zip(part.calls, answer.calls, strict=False):
            assert called == whole_name
            assert whole.startswith(arguments)


@pytest.mark.parametrize(
    "shape",
    [
        form("hermes", "qwen3"), form("qwen3_coder", "deepseek_r1"), form("llama3_json"), form("pythonic"),
        form("mistral", "mistral"), form("openai", "openai_gptoss"), form(None, "qwen3", inside=True), form("json"),
    ],
    ids=lambda shape: str(shape.names.tools),
)  # fmt: skip
@given(pieces=st.lists(st.sampled_from(FRAGMENTS), max_size=14), places=st.lists(st.integers(0, 300), max_size=12))
@settings(max_examples=120, deadline=None)
def test_any_text_is_read_alike_however_it_comes(shape: AnswerForm, pieces: list[str], places: list[int]) -> None:
    text = "".join(pieces)
    expected = read(shape, text)
    assert answer_of(parts_of(shape, cut(text, places))) == expected
