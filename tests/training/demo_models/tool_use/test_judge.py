"""What counts as a valid and as a right answer."""

import json
from typing import Any

import pytest

from training.demo_models.tool_use.conversations import CALL, PLAIN, SCHEMA, Made
from training.demo_models.tool_use.judge import cases, fits, verdict

TOOL = {"function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
WANTED = [{"name": "f", "arguments": {"a": 1}}]


def tagged(content: Any) -> str:
    return f"<tool_call>\n{content if isinstance(content, str) else json.dumps(content)}\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "valid", "right"),
    [
        (tagged(WANTED[0]), True, True),
        (tagged({"name": "f", "arguments": {"a": 2}}), True, False),
        (tagged({"name": "f", "arguments": {"a": "1"}}), False, False),
        (tagged({"name": "g", "arguments": {"a": 1}}), False, False),
        (tagged(WANTED[0]) * 2, True, False),
        (tagged("{"), False, False),
        ("It is 1.", False, False),
        ("", False, False),
    ],
)
def test_calls(text: str, valid: bool, right: bool) -> None:
    assert verdict(Made(CALL, [], [TOOL], WANTED), text) == (valid, right)


def test_json_and_words() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    made = Made(SCHEMA, [], [], {"a": 1}, schema)
    assert verdict(made, '{"a": 1}') == (True, True)
    assert verdict(made, '{"a": 2}') == (True, False)
    assert verdict(made, "{}") == verdict(made, "no") == (False, False)
    plain = Made(PLAIN, [], [TOOL])
    assert verdict(plain, "Hello.") == (True, True) and verdict(plain, tagged(WANTED[0])) == (False, False)


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        (True, {"type": "integer"}, False),
        (1, {"type": "number"}, True),
        ("a", {"type": "string", "enum": ["b"]}, False),
        (["a", 1], {"type": "array", "items": {"type": "string"}}, False),
        ({"a": 1, "b": 2}, {"type": "object", "properties": {"a": {"type": "integer"}}}, False),
    ],
)
def test_fits(value: Any, schema: dict[str, Any], expected: bool) -> None:
    assert fits(value, schema) is expected


def test_cases_know_their_answers() -> None:
    pairs = [("Hello", "Hi.")]
    for made in (*cases(pairs, 21, 1, trained=True), *cases(pairs, 21, 2, trained=False)):
        if made.kind == CALL:
            assert verdict(made, "".join(map(tagged, made.wanted))) == (True, True)
        elif made.schema is not None:
            assert verdict(made, json.dumps(made.wanted)) == (True, True)
