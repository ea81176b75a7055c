"""However an answer is cut into steps, clients are told the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.output_parsers.parts import joined
from gateway.output_parsers.registry import AnswerForm
from support.parsed_answers import RECORDED, answer_of, cut, form, parts_of, read

FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<think>", "</think>", "<function=add>", "<function=", "<parameter=a>",
    "</parameter>", "</function>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "<|channel|>", "analysis", "final",
    "commentary to=functions.f ", "<|message|>", "<|end|>", "<|start|>", "assistant", '{"name": "add", "arguments": ',
    '{"name": "add"', '"parameters"', '{"a": 1}', "{}", "[", "]", "{", "}", "(", ")", "add(a=", "get_weather", "'x'",
    '"', "\\", ",", ";", ":", "=", "1", "None", " ", "\n", "é", "text", "<", "</", "<|", "null",
]  # fmt: skip


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
