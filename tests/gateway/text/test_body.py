"""Errors of bodies name the field as the body has it, and what it may be, whichever member of a union came nearest."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.openai.schema import ChatCompletionRequest, CompletionRequest
from gateway.text.body import read_body
from slipstream.rpc.errors import InvalidArgumentError

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": "x"}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def refused(body: object) -> tuple[str, str]:
    kind = ChatCompletionRequest if isinstance(body, dict) and "messages" in body else CompletionRequest
    with pytest.raises(InvalidArgumentError) as raised:
        read_body(json.dumps(body).encode(), kind)
    return raised.value.field, raised.value.message


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        (CHAT | {"stop": {}}, "stop", "input should be a valid string or a valid array"),
        (COMPLETION | {"prompt": None}, "prompt", "input should be a valid string or a valid array"),
        (COMPLETION | {"prompt": [1, "a"]}, "prompt[1]", "input should be a valid integer"),
        (COMPLETION | {"prompt": [[1], [2, "a"]]}, "prompt[1][1]", "input should be a valid integer"),
        (COMPLETION | {"prompt": ["a", 1]}, "prompt[1]", "input should be a valid string"),
        (COMPLETION | {"prompt": [-3]}, "prompt[0]", "input should be greater than or equal to 0"),
        (CHAT | {"messages": [{"role": "user", "content": {}}]}, "messages[0].content",
         "input should be a valid string or a valid array"),
        (CHAT | {"response_format": {"type": "xml"}}, "response_format.type",
         "input should be 'text' or 'json_object' or 'json_schema' or 'structural_tag'"),
        (CHAT | {"tools": [{"type": "browser"}]}, "tools[0].type", "input should be 'function' or 'custom'"),
        (CHAT | {"tools": TOOLS, "tool_choice": {"type": "x"}}, "tool_choice.type",
         "input should be 'function' or 'custom' or 'allowed_tools'"),
        (CHAT | {"tools": TOOLS, "tool_choice": "x"}, "tool_choice", "input should be 'none', 'auto' or 'required'"),
        (COMPLETION | {"logit_bias": {"x": 1}}, "logit_bias.x",
         "the key should match pattern '^(0|[1-9][0-9]{0,8})$'"),
        (COMPLETION | {"seed": -1}, "seed", "input should be greater than or equal to 0"),
    ],
)  # fmt: skip
def test_a_field_that_is_wrong_is_named_as_the_body_has_it(body: object, field: str, message: str) -> None:
    assert refused(body) == (field, f"{field}: {message}")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"prompt": "x"}, "model"),
        (CHAT | {"response_format": {}}, "response_format.type"),
        (CHAT | {"tools": [{"type": "function"}]}, "tools[0].function"),
        (CHAT | {"tools": TOOLS, "tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name"),
    ],
)
def test_what_is_missing_is_named(body: object, field: str) -> None:
    assert refused(body) == (field, f"missing required parameter: {field}")


@pytest.mark.parametrize("body", [[1], None, "x", 7, True])
def test_a_body_that_is_no_object_is_refused(body: object) -> None:
    assert refused(body) == ("", "the body: input should be an object")


def test_a_field_that_stands_twice_is_refused_and_those_without_effect_are_not_looked_at() -> None:
    with pytest.raises(InvalidArgumentError, match="seed stands twice") as raised:
        read_body(b'{"model": "tiny", "prompt": "x", "seed": 1, "seed": 2}', CompletionRequest)
    assert raised.value.field == "seed"
    body, _ = read_body(b'{"model": "tiny", "prompt": "x", "metadata": {"a": 1, "a": 2}}', CompletionRequest)
    assert body.prompt == "x"
