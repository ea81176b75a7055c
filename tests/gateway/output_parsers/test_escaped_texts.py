"""Escapes that models write, where what they say is given to clients."""

from __future__ import annotations

import json

import pytest

from gateway.output_parsers.json_values import strict_json, well_formed
from support.parsed_answers import form, read

REPLACED = "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("parser", "text", "call"),
    [
        ("pythonic", r'[add(a="\ud83d\ude00")]', ("add", '{"a": "😀"}')),
        ("pythonic", r'[add(a="\ude00x", b=["\ud83d"])]', ("add", f'{{"a": "{REPLACED}x", "b": ["{REPLACED}"]}}')),
        ("hermes", r'<tool_call>{"name": "f", "arguments": "\ud83d"}</tool_call>', ("f", REPLACED)),
        ("hermes", r'<tool_call>{"name": "f\ud83d", "arguments": {}}</tool_call>', (f"f{REPLACED}", "{}")),
        ("qwen3_coder", r'<function=f><parameter=a>"\ud83d"</parameter></function>', ("f", f'{{"a": "{REPLACED}"}}')),
        ("qwen3_coder", "<function=add><parameter=a>1e999</parameter></function>", ("add", '{"a": "1e999"}')),
    ],
)  # fmt: skip
def test_calls_are_text_that_utf_8_can_write(parser: str, text: str, call: tuple[str, str]) -> None:
    answer = read(form(parser), text)
    assert answer.calls == (call,)
    json.dumps(answer.calls, ensure_ascii=False).encode()


def test_only_surrogates_without_their_pair_are_replaced() -> None:
    assert well_formed("\ufeffé\ud83d\ude00\ude00\ud83dx\ud83d") == f"\ufeffé😀{REPLACED * 2}x{REPLACED}"


@pytest.mark.parametrize("number", ["1e999", "[-1e999]", "NaN", "Infinity"])
def test_what_json_cannot_write_is_no_json(number: str) -> None:
    assert strict_json(number) is None
