"""Answers of model families as they write them, and what an output parser makes of a text in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from gateway.output_parsers.parts import AnswerPart, CallArguments, CallBegin, Content, Reasoning, joined
from gateway.output_parsers.registry import AnswerForm, Names, new_parser

STRINGS = {"write": frozenset({"path", "text"}), "get_weather": frozenset({"city"}), "add": frozenset[str]()}
"""Parameters that are strings, of the tools that tests declare."""


class Answer(NamedTuple):
    """What a client is told, its pieces joined."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[tuple[str, str], ...] = ()


def form(tools: str | None, reasoning: str | None = None, *, inside: bool | None = False) -> AnswerForm:
    return AnswerForm(Names(tools, reasoning), inside, STRINGS)


def parts_of(shape: AnswerForm, pieces: Iterable[str]) -> list[AnswerPart]:
    parser = new_parser(shape)
    parts = [part for piece in pieces for part in parser.push(piece)]
    return parts + parser.finish()


def answer_of(parts: Sequence[AnswerPart]) -> Answer:
    """Checks the order of parts on the way: a call begins before it has arguments, and calls are counted from 0."""
    reasoning, content, calls = "", "", []
    for part in parts:
        match part:
            case Reasoning(text):
                reasoning += text
            case Content(text):
                content += text
            case CallBegin(index, name):
                assert index == len(calls)
                calls.append((name, ""))
            case CallArguments(index, text):
                assert index == len(calls) - 1
                calls[-1] = (calls[-1][0], calls[-1][1] + text)
    return Answer(reasoning, content, tuple(calls))


def cut(text: str, places: Iterable[int]) -> list[str]:
    bounds = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[begin:end] for begin, end in pairwise(bounds)]


def read(shape: AnswerForm, text: str) -> Answer:
    """The answer of a text that comes whole, and one character at a time."""
    whole = parts_of(shape, [text])
    assert answer_of(parts_of(shape, text)) == answer_of(whole)
    assert joined(parts_of(shape, text)) == joined(whole)
    return answer_of(whole)


HERMES = (
    "I will look it up.\n<tool_call>\n"
    '{"name": "get_weather", "arguments": {"city": "S\\u00e3o \\"P\\"", "days": [1, {"x": "}]"}]}}\n</tool_call>\n'
    '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": -2.5e3}}\n</tool_call>'
)
XML = (
    "<tool_call>\n<function=write>\n<parameter=path>\na.py\n</parameter>\n<parameter=text>\nif a < b:\n\n"
    '    print("<b>")\n\n</parameter>\n<parameter=mode>\n{"x": [1, true]}\n</parameter>\n</function>\n</tool_call>\n'
    "<tool_call>\n<function=add>\n</function>\n</tool_call>"
)
LLAMA = '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Oslo"}}; {"name": "add", "parameters": {"a": 1}}'
PYTHONIC = "[get_weather(city='O\\'slo, (N)', at=[1, {\"k\": None}]), add(a=-1, b=true)]"
MISTRAL = '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo"}}, {"name": "add", "arguments": {}}]'
MISTRAL_NEW = (
    '[THINK]Hm.[/THINK]Look:[TOOL_CALLS]get_weather[CALL_ID]abc123XYZ[ARGS]{"city": "]}"}[TOOL_CALLS]add{"a": 1}'
)
HARMONY = (
    "<|channel|>analysis<|message|>Need weather.<|end|><|start|>assistant<|channel|>commentary<|message|>One moment."
    "<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    '{"city": "Oslo"}<|call|>'
)
THINKING = f"<think>\nThey ask for <tool_call>s; I call.\n\n</think>\n\n{HERMES}"

WEATHER = ("get_weather", '{"city": "Oslo"}')

RECORDED: dict[str, tuple[AnswerForm, str, Answer]] = {
    "hermes": (
        form("hermes"),
        HERMES,
        Answer(
            content="I will look it up.",
            calls=(
                ("get_weather", '{"city": "S\\u00e3o \\"P\\"", "days": [1, {"x": "}]"}]}'),
                ("add", '{"a": 1, "b": -2.5e3}'),
            ),
        ),
    ),
    "thinking": (
        form("hermes", "qwen3"),
        THINKING,
        Answer(
            reasoning="They ask for <tool_call>s; I call.",
            content="I will look it up.",
            calls=(
                ("get_weather", '{"city": "S\\u00e3o \\"P\\"", "days": [1, {"x": "}]"}]}'),
                ("add", '{"a": 1, "b": -2.5e3}'),
            ),
        ),
    ),
    "xml": (
        form("qwen3_coder"),
        XML,
        Answer(
            calls=(
                (
                    "write",
                    '{"path": "a.py", "text": "if a < b:\\n\\n    print(\\"<b>\\")\\n", "mode": {"x": [1, true]}}',
                ),
                ("add", "{}"),
            )
        ),
    ),
    "llama": (form("llama3_json"), LLAMA, Answer(calls=(WEATHER, ("add", '{"a": 1}')))),
    "pythonic": (
        form("pythonic"),
        PYTHONIC,
        Answer(
            calls=(
                ("get_weather", '{"city": "O\'slo, (N)", "at": [1, {"k": null}]}'),
                ("add", '{"a": -1, "b": true}'),
            )
        ),
    ),
    "mistral": (form("mistral", "mistral"), MISTRAL, Answer(calls=(WEATHER, ("add", "{}")))),
    "mistral, newer": (
        form("mistral", "mistral"),
        MISTRAL_NEW,
        Answer("Hm.", "Look:", (("get_weather", '{"city": "]}"}'), ("add", '{"a": 1}'))),
    ),
    "harmony": (form("openai", "openai_gptoss"), HARMONY, Answer("Need weather.", "One moment.", (WEATHER,))),
    "reasoning without its first tag": (
        form("llama3_json", "deepseek_r1"),
        "They ask.\n\nI <call>.</think>\n\nFine: {1}",
        Answer("They ask.\n\nI <call>.", "Fine: {1}"),
    ),
    "reasoning begun by the prompt": (
        form(None, "qwen3", inside=True),
        "Hm </thin\n</think>\nYes.",
        Answer("Hm </thin", "Yes."),
    ),
    "forced": (
        form("json"),
        '{"name": "get_weather", "parameters": {"city": "Oslo"}}{"name": "add", "parameters": {"a": "\\"}{"}}',
        Answer(calls=(WEATHER, ("add", '{"a": "\\"}{"}'))),
    ),
}
"""By name: how it is to be read, the text, and what it says."""
