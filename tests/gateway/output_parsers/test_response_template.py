"""What a checkpoint says of its answers, against transformers, which reads the same description."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers.utils.chat_parsing.response_parser import parse_response

from gateway.output_parsers.registry import AnswerForm, Names, Tags
from gateway.output_parsers.response_template import names_of_template
from gateway.text.answer_form import parser_names
from support.parsed_answers import STRINGS, read
from support.tool_template import TEMPLATE

QWEN: dict[str, Any] = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "thinking": {"open": "<think>", "close": "</think>", "content": "text"},
        "tool_calls": {
            "open_pattern": r"\s*<tool_call>", "close": "</tool_call>", "repeats": True, "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"\s*(?:<\|im_end\|>)", "content": "text"},
    },
}  # fmt: skip
OTHER: dict[str, Any] = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "thinking": {"open": "[[", "close": "]]", "content": "text"},
        "tool_calls": {"open": "<call>", "close": "</call>", "repeats": True, "content": "json",
                       "transform": {"type": "function", "function": "{content}"}},
        "content": {"close": "<|im_end|>", "content": "text"},
    },
}  # fmt: skip
CODER: dict[str, Any] = {
    "fields": {
        "tool_calls": {"open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>", "content": "xml-inline"}
    }
}
CALLS = '{"name": "add", "arguments": {"a": 1}}', '{"name": "get_weather", "arguments": {"city": "Oslo"}}'


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (QWEN, f"<think>Hm.</think>I ask.<tool_call>{CALLS[0]}</tool_call><tool_call>{CALLS[1]}</tool_call>"),
        (QWEN, "<think>Hm.</think>Yes."),
        (OTHER, f"[[Hm.]]I ask.<call>{CALLS[0]}</call><call>{CALLS[1]}</call>"),
        (OTHER, f"<call>{CALLS[1]}</call>"),
    ],
)
def test_answers_are_read_as_transformers_reads_them(spec: dict[str, Any], text: str) -> None:
    theirs = parse_response(text, spec, prefix="<|im_start|>assistant\n")
    ours = read(AnswerForm(names_of_template(spec), False, STRINGS), text)
    assert (ours.reasoning, ours.content) == (theirs.get("thinking", ""), theirs.get("content", ""))
    called = [(call["function"]["name"], call["function"]["arguments"]) for call in theirs.get("tool_calls", ())]
    assert [(name, json.loads(arguments)) for name, arguments in ours.calls] == called


def test_forms_are_found_or_left_to_the_chat_template() -> None:
    qwen = Names("hermes", "tags", Tags("<tool_call>", "</tool_call>"), Tags("<think>", "</think>"))
    assert names_of_template(QWEN) == qwen
    assert names_of_template(CODER) == Names("qwen3_coder", None)
    for spec in (None, [], {}, {"fields": []}, {"fields": {"tool_calls": {"open_pattern": "a|b", "close": "c"}}}):
        assert names_of_template(spec) == Names()


def test_settings_stand_before_what_the_checkpoint_says_and_that_before_the_chat_template() -> None:
    said = parser_names(TEMPLATE, "auto", "auto", OTHER)
    assert (said.around_calls, said.around_reasoning) == (Tags("<call>", "</call>"), Tags("[[", "]]"))
    assert parser_names(TEMPLATE, "hermes", "qwen3", OTHER) == Names("hermes", "qwen3")
