"""Calls as the OpenAI API writes them, from parts that a parser has read."""

from __future__ import annotations

import json

import pytest

from gateway.openai.answer_parts import StreamedCalls, message
from gateway.output_parsers.parts import CallArguments, CallBegin
from gateway.output_parsers.registry import AnswerForm, Names

FORM = AnswerForm(Names("hermes"), custom=frozenset({"run"}))


def test_the_input_of_a_custom_tool_can_be_written_as_utf_8() -> None:
    begin, arguments = CallBegin(0, "run"), CallArguments(0, r'{"input": "\ud83d\ude00 \ud83d"}')
    whole = message([begin, arguments], FORM, [])["tool_calls"][0]
    streamed = StreamedCalls(FORM)
    streamed.arguments(arguments, streamed.begin(begin))
    end = streamed.end()
    assert end is not None
    assert whole["custom"]["input"] == end["custom"]["input"] == "😀 \N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("ascii_only", [True, False])
def test_the_input_of_a_call_that_is_cut_off_is_the_beginning_of_its_text(ascii_only: bool) -> None:
    text = 'say("\\a\n\u00e9\U0001f600")'
    written = json.dumps({"input": text}, ensure_ascii=ascii_only)
    begin, found = CallBegin(0, "run"), []
    for end in range(len('{"input": "'), len(written) + 1):
        arguments = CallArguments(0, written[:end])
        (call,) = message([begin, arguments], FORM, [])["tool_calls"]
        streamed = StreamedCalls(FORM)
        streamed.arguments(arguments, streamed.begin(begin))
        last = streamed.end()
        assert last is not None and last["custom"]["input"] == call["custom"]["input"]
        assert text.startswith(call["custom"]["input"])
        found.append(call["custom"]["input"])
    assert set(found) == {text[:end] for end in range(len(text) + 1)}, "each letter is there once it is whole"
