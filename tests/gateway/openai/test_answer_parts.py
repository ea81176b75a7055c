"""Calls as the OpenAI API writes them, from parts that a parser has read."""

from __future__ import annotations

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
