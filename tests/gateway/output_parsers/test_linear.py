"""A text is read once, however long its parts are: what is read again, and copied, with each piece is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.output_parsers.parts import joined
from gateway.output_parsers.registry import AnswerForm, new_parser
from support.parsed_answers import form, parts_of

LONG = "abcdefghij \\n" * 400
MOST_KEPT = 64
"""Characters of one text that a parser keeps from piece to piece, and reads with the next one."""

TEXTS: dict[str, tuple[AnswerForm, str]] = {
    "arguments as a string": (form("hermes"), f'<tool_call>{{"name": "add", "arguments": "{LONG}"}}</tool_call>'),
    "arguments before the name": (form("hermes"), f'<tool_call>{{"arguments": {{"a": "{LONG}"}}, "name": "add"}}'),
    "a string without meaning": (form("llama3_json"), f'{{"name": "add", "why": "{LONG}", "parameters": {{}}}}'),
    "a key": (form("json"), f'{{"name": "add", "{LONG}": 1, "parameters": {{}}}}'),
    "a name": (form("hermes"), f'<tool_call>{{"name": "{LONG}"}}</tool_call>'),
    "a number": (form("hermes"), f'<tool_call>{{"name": "add", "arguments": {"1" * 5000}}}</tool_call>'),
    "escapes": (form("hermes"), '<tool_call>{"name": "add", "arguments": "' + "\\\\\\n" * 1000 + '"}</tool_call>'),
    "an object": (form("mistral"), f'[TOOL_CALLS]add{{"a": "{LONG}"}}'),
    "a list of calls": (form("mistral"), f'[TOOL_CALLS][{{"name": "add", "arguments": {{"a": "{LONG}"}}}}]'),
    "a parameter that is a string": (
        form("qwen3_coder"), f"<tool_call><function=write><parameter=path>\n{LONG * 2}\n</parameter></function>",
    ),
    "a parameter that is none": (
        form("qwen3_coder"), f'<tool_call><function=add><parameter=a>\n["{LONG}"]\n</parameter></function>',
    ),
    "a parameter of many lines": (form("qwen3_coder"), "<function=add><parameter=a>" + "\n<x" * 2000),
    "between parameters": (form("qwen3_coder"), f"<tool_call><function=add>{LONG}</function>"),
    "behind a call": (form("hermes"), f'<tool_call>{{"name": "add"}} {LONG} <tool_call>'),
    "behind calls that nothing closes": (form("hermes"), f'<tool_call>{{"name": "add"}} {LONG}'),
    "reasoning": (form("hermes", "qwen3"), f"<think>{LONG}</think>{LONG}"),
    "channels": (form("openai", "openai_gptoss"), f"<|channel|>analysis<|message|>{LONG}<|end|>"),
    "text": (form("pythonic"), LONG),
}  # fmt: skip


def kept(parser: Any, seen: set[int]) -> Iterator[tuple[str, str]]:
    """The names of a parser's texts, and of the parsers within it, with the texts."""
    if id(parser) in seen:
        return
    seen.add(id(parser))
    for kind in type(parser).__mro__:
        for name in getattr(kind, "__slots__", ()):
            value = getattr(parser, name)
            if isinstance(value, str):
                yield f"{kind.__name__}.{name}", value
            elif type(value).__module__.startswith("gateway.output_parsers"):
                yield from kept(value, seen)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("size", [1, 3])
def test_no_text_that_was_read_is_kept_to_be_read_again(name: str, size: int) -> None:
    shape, text = TEXTS[name]
    parser = new_parser(shape)
    for begin in range(0, len(text), size):
        parser.push(text[begin : begin + size])
        for place, value in kept(parser, set()):
            assert len(value) <= MOST_KEPT, (place, value)
    parser.finish()


@pytest.mark.parametrize("name", TEXTS)
def test_long_texts_are_read_alike_however_they_come(name: str) -> None:
    shape, text = TEXTS[name]
    whole = joined(parts_of(shape, [text]))
    for size in (1, 7, 1000):
        assert joined(parts_of(shape, (text[at : at + size] for at in range(0, len(text), size)))) == whole
