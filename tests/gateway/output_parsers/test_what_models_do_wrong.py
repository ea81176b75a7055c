"""What models write that is no call, or hardly one, and what peers' parsers have lost, doubled or cut off."""

from __future__ import annotations

import json

import pytest

from support.parsed_answers import WEATHER, Answer, form, parts_of, read

OSLO = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
HERMES: dict[str, tuple[str, Answer]] = {
    "no JSON": ("<tool_call>no</tool_call> x", Answer(content="<tool_call>no</tool_call> x")),
    "another object": ('<tool_call>{"a": 1}</tool_call>', Answer(content='<tool_call>{"a": 1}</tool_call>')),
    "a brace too many": (f"<tool_call>{OSLO}}}</tool_call>\nDone.", Answer(content="Done.", calls=(WEATHER,))),
    "two in a tag": (f"<tool_call>{OSLO}\n{OSLO}</tool_call>", Answer(calls=(WEATHER, WEATHER))),
    "a list in a tag": (f"<tool_call>[{OSLO}, {OSLO}]</tool_call>", Answer(calls=(WEATHER, WEATHER))),
    "no end tag": (f"<tool_call>{OSLO}\n<tool_call>{OSLO}", Answer(calls=(WEATHER, WEATHER))),
    "text behind a call without end tag": (f"<tool_call>{OSLO}\nDone.", Answer(content="Done.", calls=(WEATHER,))),
    "arguments as a string": (
        '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}</tool_call>',
        Answer(calls=(WEATHER,)),
    ),
    "arguments first": (
        '<tool_call>{"arguments": {"city": "Oslo"}, "name": "get_weather"}</tool_call>', Answer(calls=(WEATHER,))
    ),
    "no arguments": ('<tool_call>{"name": "add"}</tool_call>', Answer(calls=(("add", "{}"),))),
    "null for arguments": ('<tool_call>{"name": "add", "arguments": null}</tool_call>', Answer(calls=(("add", "{}"),))),
    "the API's own form": (
        f'<tool_call>{{"id": "1", "type": "function", "function": {OSLO}}}</tool_call>', Answer(calls=(WEATHER,))
    ),
    "an end tag in an argument": (
        '<tool_call>{"name": "add", "arguments": {"a": "</tool_call>"}}</tool_call>!',
        Answer(content="!", calls=(("add", '{"a": "</tool_call>"}'),)),
    ),
    "a tag that is mentioned": ("Use <tool_call> so.", Answer(content="Use <tool_call> so.")),
    "only white space": ("\n\n", Answer(content="\n\n")),
}  # fmt: skip


@pytest.mark.parametrize("name", HERMES)
def test_tags(name: str) -> None:
    text, answer = HERMES[name]
    assert read(form("hermes"), text) == answer


def test_an_argument_goes_out_as_it_is_written_and_not_at_the_end() -> None:
    head = '<tool_call>{"name": "add", "arguments": {"text": "'
    letters = "abcdefgh"
    parts = parts_of(form("hermes"), [head, *letters])
    assert len(parts) >= 2 + len(letters)


XML: dict[str, tuple[str, Answer]] = {
    "no tag around": (
        "<function=add>\n<parameter=a>\n1\n</parameter>\n</function>", Answer(calls=(("add", '{"a": 1}'),))
    ),
    "no end of a parameter": (
        "<tool_call>\n<function=write>\n<parameter=path>\na\n<parameter=n>\n2\n</function>\n</tool_call>",
        Answer(calls=(("write", '{"path": "a", "n": 2}'),)),
    ),
    "a string that reads as a number": (
        "<function=write><parameter=path>12</parameter></function>", Answer(calls=(("write", '{"path": "12"}'),))
    ),
    "Python's words": (
        "<function=add><parameter=a>True</parameter><parameter=b>None</parameter></function>",
        Answer(calls=(("add", '{"a": true, "b": null}'),)),
    ),
    "no JSON where none is a string": (
        "<function=add><parameter=a>NaN</parameter></function>", Answer(calls=(("add", '{"a": "NaN"}'),))
    ),
    "another tag": ("<tool_call>\nx</tool_call>", Answer(content="<tool_call>\nx</tool_call>")),
}  # fmt: skip


@pytest.mark.parametrize("name", XML)
def test_xml(name: str) -> None:
    text, answer = XML[name]
    assert read(form("qwen3_coder"), text) == answer


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("llama3_json", '{"name": "Bob", "age": 3}'),
        ("llama3_json", '[{"name": "Bob"}]'),
        ("llama3_json", "<|python_tag|>print(1)"),
        ("llama3_json", '{"city": "Oslo"}'),
        ("pythonic", "[1, 2, 3]"),
        ("pythonic", "[get_weather(city=now())]"),
        ("pythonic", "[get_weather('Oslo')]"),
        ("pythonic", f"[get_weather(city={'[' * 60}{']' * 60})]"),
        ("pythonic", f"[get_weather(city={'-' * 30_000}1)]"),
        ("mistral", "[TOOL_CALLS] are made so."),
        ("mistral", "[TOOL_CALLS]" + "x" * 2000),
        ("openai", "No channels here."),
        ("openai", "x" * 2000),
    ],
)
def test_what_is_no_call_stays_text(parser: str, text: str) -> None:
    assert read(form(parser), text) == Answer(content=text)


def test_a_call_that_is_too_long_to_be_decoded_whole_stays_text() -> None:
    longest, too_long = (f"get_weather(city='{'x' * (size - 20)}')" for size in (1 << 13, (1 << 13) + 1))
    assert len(longest) == 1 << 13
    assert len(read(form("pythonic"), f"[{longest}]").calls) == 1
    assert read(form("pythonic"), f"[{too_long}]") == Answer(content=f"[{too_long}]")


def test_commentary_to_the_user_is_content_and_a_head_alone_is_nothing() -> None:
    text = "<|channel|>commentary<|message|>Wait.<|end|><|start|>assistant<|channel|>fin"
    assert read(form("openai", "openai_gptoss"), text) == Answer(content="Wait.")


def test_a_recipient_may_stand_before_the_channel() -> None:
    text = f" to=functions.get_weather<|channel|>commentary json<|message|>{WEATHER[1]}<|call|>"
    assert read(form("openai", "openai_gptoss"), text) == Answer(calls=(WEATHER,))


def test_many_calls_take_time_in_proportion() -> None:
    text = f"<tool_call>{OSLO}</tool_call>\n" * 500
    answer = read(form("hermes"), text)
    assert len(answer.calls) == 500
    assert json.loads(answer.calls[-1][1]) == {"city": "Oslo"}
