"""Grammars of calls: what they let through is what the parser of the same form reads, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.openai.tools import CustomTool, schema_of
from gateway.output_parsers.registry import AnswerForm
from gateway.text.jobs import Jobs
from gateway.text.prepared import Prepared, WorkerTask
from slipstream.grammar.check import MAX_BYTES
from slipstream.grammar.grammar import Grammar
from slipstream.rpc.errors import InvalidArgumentError
from support.grammar_texts import Accepts, acceptance
from support.parsed_answers import Answer, read
from support.tool_template import CALL, TEMPLATE, WEATHER
from support.virtual_verify import INFO

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/n"}, "b": {"$ref": "#/$defs/n"}},
            "required": ["a"],
            "additionalProperties": False,
            "$defs": {"n": {"type": "integer"}},
        },
    },
}
TOOLS = [WEATHER, ADD]
STRICT = [tool | {"function": tool["function"] | {"strict": True}} for tool in TOOLS]
BOTH = {"get_weather": '{"city": "Oslo", "days": 2}', "add": '{"a": 1}'}
XML_CALL = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo <N>\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
    "</function>\n</tool_call>"
)
XML_TEMPLATE = TEMPLATE + "{# <function= and <parameter= #}"
LLAMA_TEMPLATE = "{{ tools }}<|python_tag|>"
MISTRAL_TEMPLATE = "{{ tools }}[TOOL_CALLS]"


@pytest.fixture(scope="module")
def accepts(tokenizer_folder: Path) -> Accepts:
    return acceptance(tokenizer_folder)


@pytest.fixture
def prepared(tokenizer_folder: Path, tmp_path: Path) -> Any:
    def prepared(template: str = TEMPLATE, **fields: Any) -> Prepared:
        file = tmp_path / "template.jinja"
        file.write_text(template, "utf-8")
        jobs = Jobs.load(
            tokenizer_folder, file, max_bytes=1 << 20, max_choices=8, stages=lambda file: None, reasoning_parser="none"
        )
        body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "tools": TOOLS} | fields
        answer = jobs.run(WorkerTask.CHAT, bytearray(json.dumps(body).encode()), INFO)
        assert isinstance(answer, Prepared)
        return answer

    return prepared


def parts(request: Prepared) -> tuple[Grammar, AnswerForm]:
    assert request.sampling.grammar is not None
    assert request.answer is not None
    return request.sampling.grammar, request.answer


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def bare(name: str, arguments: str) -> str:
    return f'{{"name": "{name}", "parameters": {arguments}}}'


@pytest.mark.parametrize(
    ("template", "write"), [(TEMPLATE, hermes), (LLAMA_TEMPLATE, bare), (MISTRAL_TEMPLATE, bare), ("{{ tools }}", bare)]
)
def test_calls_that_are_required_are_all_that_is_let_through(
    prepared: Any, accepts: Accepts, template: str, write: Any
) -> None:
    grammar, form = parts(prepared(template, tool_choice="required"))
    calls = [write(name, arguments) for name, arguments in BOTH.items()]
    for text, names in ((calls[0], ["get_weather"]), ("".join(calls), ["get_weather", "add"])):
        assert accepts(grammar, text)
        assert read(form, text) == Answer(calls=tuple((name, BOTH[name]) for name in names))
    for text in (
        "",
        "Hello",
        write("get_weather", "{}"),
        write("other", "{}"),
        write("add", '{"a": "1"}'),
        f"Hi {calls[0]}",
    ):
        assert not accepts(grammar, text)


def test_a_named_tool_is_called_once(prepared: Any, accepts: Accepts) -> None:
    choice = {"type": "function", "function": {"name": "add"}}
    grammar, _ = parts(prepared(tool_choice=choice))
    call = hermes("add", '{"a": 1, "b": 2}')
    assert accepts(grammar, call)
    assert not accepts(grammar, call + call)
    assert not accepts(grammar, CALL)


def test_a_function_without_parameters_is_called_with_none(prepared: Any, accepts: Accepts) -> None:
    tools = [{"type": "function", "function": {"name": "ping"}}]
    grammar, _ = parts(prepared(tools=tools, tool_choice="required"))
    assert accepts(grammar, hermes("ping", "{}"))
    assert not accepts(grammar, hermes("ping", '{"name": "ping"}'))
    open_to_any = [{"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}]
    grammar, _ = parts(prepared(tools=open_to_any, tool_choice="required"))
    assert accepts(grammar, hermes("ping", '{"name": "ping"}'))
    xml, _ = parts(prepared(XML_TEMPLATE, tools=tools, tool_choice="required"))
    assert accepts(xml, "<tool_call>\n<function=ping>\n</function>\n</tool_call>")


def test_strict_tools_are_held_to_their_schemas_within_free_text(prepared: Any, accepts: Accepts) -> None:
    grammar, form = parts(prepared(tools=STRICT))
    text = f"I ask.\n{CALL}\nAnd then?"
    assert accepts(grammar, text)
    assert read(form, text).calls == (("get_weather", BOTH["get_weather"]),)
    assert accepts(grammar, "Hello.")
    assert not accepts(grammar, hermes("add", '{"a": "1"}'))
    assert prepared().sampling.grammar is None


def test_one_call_or_some_of_the_tools(prepared: Any, accepts: Accepts) -> None:
    single, _ = parts(prepared(parallel_tool_calls=False))
    assert accepts(single, f"Hm. {CALL}")
    assert not accepts(single, f"{CALL}{CALL}")
    some = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "add"}}]}
    grammar, form = parts(prepared(tool_choice={"type": "allowed_tools", "allowed_tools": some}))
    assert accepts(grammar, hermes("add", '{"anything": 1}'))
    assert not accepts(grammar, CALL)
    assert list(form.strings) == ["add"]


def test_calls_as_xml(prepared: Any, accepts: Accepts) -> None:
    grammar, form = parts(prepared(XML_TEMPLATE, tool_choice="required"))
    assert accepts(grammar, XML_CALL)
    assert read(form, XML_CALL) == Answer(calls=(("get_weather", '{"city": "Oslo <N>", "days": 2}'),))
    assert not accepts(grammar, XML_CALL.replace("\n2\n", "\ntwo\n"))
    add = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
    assert accepts(grammar, add + XML_CALL)
    assert not accepts(grammar, add.replace("=a>", "=c>"))


@pytest.mark.parametrize(
    "schema", [{"type": ["string"], "enum": ["red"]}, {"type": ["string"]}, {"enum": ["red"]}, {"const": "red"}]
)
def test_what_can_only_be_a_string_has_no_quotes_in_xml(
    prepared: Any, accepts: Accepts, schema: dict[str, Any]
) -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {"c": schema}, "required": ["c"]}}
    tools = [{"type": "function", "function": function}]
    grammar, form = parts(prepared(XML_TEMPLATE, tools=tools, tool_choice="required"))
    call = "<tool_call>\n<function=f>\n<parameter=c>\nred\n</parameter>\n</function>\n</tool_call>"
    assert accepts(grammar, call)
    assert read(form, call) == Answer(calls=(("f", '{"c": "red"}'),))
    if "enum" in schema or "const" in schema:
        assert not accepts(grammar, call.replace("red", '"red"'))


def test_white_space_in_xml_is_that_of_any_other_call(prepared: Any, accepts: Accepts) -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {"o": {"type": "object"}}}}
    grammar, _ = parts(
        prepared(XML_TEMPLATE, tools=[{"type": "function", "function": function}], tool_choice="required")
    )
    call = '<tool_call>\n<function=f>\n<parameter=o>\n{"a": 1}\n</parameter>\n</function>\n</tool_call>'
    assert accepts(grammar, call)
    assert accepts(grammar, call.replace(": ", ":\n    "))
    for space in ("\t", "  ", "\n\n", "\n" * 50):
        assert not accepts(grammar, call.replace(": ", f":{space}"))


def test_schemas_that_say_more_than_xml_can_are_forced_as_json(prepared: Any, accepts: Accepts) -> None:
    function = {"name": "f", "strict": True, "parameters": {"type": "object", "properties": {
        "s": {"type": "string", "pattern": "^[a-z]+$"}}}}  # fmt: skip
    tools = [{"type": "function", "function": function}]
    grammar, form = parts(prepared(XML_TEMPLATE, tools=tools, tool_choice="required"))
    assert accepts(grammar, bare("f", '{"s": "abc"}'))
    assert read(form, bare("f", '{"s": "abc"}')) == Answer(calls=(("f", '{"s": "abc"}'),))
    with pytest.raises(InvalidArgumentError, match="free text") as caught:
        prepared(XML_TEMPLATE, tools=tools)
    assert caught.value.field == "tools[0].function.strict"


def test_a_custom_tool_with_a_regular_expression(prepared: Any, accepts: Accepts) -> None:
    grammar, _ = parts(prepared(tools=[custom("regex", "[a-c]+")]))
    assert accepts(grammar, hermes("run", '{"input": "abc"}'))
    assert not accepts(grammar, hermes("run", '{"input": "abd"}'))


def custom(syntax: str, definition: str) -> dict[str, Any]:
    grammar = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    return {"type": "custom", "custom": {"name": "run", "format": grammar}}


LINES = r"""
start: line+
line: WORD (" " (WORD | ESCAPED_STRING))* "\n"
WORD: /[a-z]+/
%import common.ESCAPED_STRING
"""
SCRIPT = 'say "a\\tb"\nstop\n'


@pytest.mark.parametrize(
    ("template", "write"), [(TEMPLATE, hermes), (LLAMA_TEMPLATE, bare), (MISTRAL_TEMPLATE, bare), (XML_TEMPLATE, bare)]
)
def test_a_custom_tool_with_a_grammar_in_lark(prepared: Any, accepts: Accepts, template: str, write: Any) -> None:
    grammar, form = parts(prepared(template, tools=[custom("lark", LINES), ADD], tool_choice="required"))
    call = write("run", json.dumps({"input": SCRIPT}))
    assert accepts(grammar, call)
    assert accepts(grammar, write("add", '{"a": 1}') + call)
    assert read(form, call) == Answer(calls=(("run", json.dumps({"input": SCRIPT})),))
    assert form.custom == {"run"}
    for text in ("say", 'say "\n', "say\n\n", ""):
        assert not accepts(grammar, write("run", json.dumps({"input": text})))


def test_a_grammar_in_lark_within_free_text(prepared: Any, accepts: Accepts) -> None:
    request = prepared(tools=[custom("lark", LINES), WEATHER])
    grammar, form = parts(request)
    call = hermes("run", json.dumps({"input": SCRIPT}))
    text = f"I do.\n{call}\n{CALL}"
    assert accepts(grammar, text)
    assert [name for name, _ in read(form, text).calls] == ["run", "get_weather"]
    assert accepts(grammar, "Nothing to do.")
    assert not accepts(grammar, call.replace("say", "Say"))


def test_a_grammar_in_lark_beside_an_answer_in_json(prepared: Any, accepts: Accepts) -> None:
    tools = [custom("lark", LINES), *STRICT]
    tools.append({"type": "custom", "custom": tools[0]["custom"] | {"name": "again"}})
    grammar, _ = parts(prepared(tools=tools, response_format={"type": "json_object"}))
    for name in ("run", "again"):
        assert accepts(grammar, hermes(name, json.dumps({"input": SCRIPT})))
        assert not accepts(grammar, hermes(name, '{"input": "say"}'))
    assert accepts(grammar, '{"x": 1}')
    assert accepts(grammar, CALL)


@pytest.mark.parametrize("tool", [custom("regex", "[0-9]+( [-+*] [0-9]+)*"), custom("lark", r"""
start: INT (SIGN INT)*
SIGN: "+" | "-" | "*"
%import common (INT, WS_INLINE)
%ignore WS_INLINE
""")])  # fmt: skip
def test_a_line_of_a_grammar_as_xml(prepared: Any, accepts: Accepts, tool: dict[str, Any]) -> None:
    for choice in ("auto", "required"):
        grammar, form = parts(prepared(XML_TEMPLATE, tools=[tool], tool_choice=choice))
        call = "<tool_call>\n<function=run>\n<parameter=input>\n1 + 23 * 4\n</parameter>\n</function>\n</tool_call>"
        assert accepts(grammar, call)
        assert read(form, call) == Answer(calls=(("run", '{"input": "1 + 23 * 4"}'),))
        assert not accepts(grammar, call.replace("* 4", "*"))
        assert not accepts(grammar, call.replace("* 4", "* 4\n"))


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"tools": [ADD, custom("lark", "start: A")]}, "tools[1].custom.format.grammar.definition", "A is not defined"),
        ({"tools": [custom("lark", "start: <|end|>")]}, "tools[0].custom.format.grammar.definition", "special token"),
        ({"tools": [custom("lark", "#" * 40_000)]}, "tools[0].custom.format.grammar.definition", "32768"),
        ({"tools": [custom("lark", LINES)], "template": XML_TEMPLATE}, "tools[0].custom.format", "free text"),
        ({"tools": [custom("regex", "a")], "template": MISTRAL_TEMPLATE}, "tools[0].custom.format", "free text"),
    ],
)
def test_grammars_of_custom_tools_that_are_refused(
    prepared: Any, fields: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=words) as caught:
        prepared(**fields)
    assert caught.value.field == field


def test_a_grammar_in_lark_is_shown_to_the_model(prepared: Any) -> None:
    assert (
        "A text of this grammar in Lark"
        in schema_of(CustomTool(**custom("lark", LINES)))["properties"]["input"]["description"]
    )
    with pytest.raises(InvalidArgumentError):
        prepared(tools=[custom("ebnf", LINES)])


def test_a_schema_as_text_is_measured_before_it_is_decoded(prepared: Any) -> None:
    text = "[" * (MAX_BYTES + 1)
    with pytest.raises(InvalidArgumentError, match=f"has {len(text)} bytes, the limit is {MAX_BYTES}") as caught:
        prepared(structured_outputs={"json": text})
    assert caught.value.field == "structured_outputs.json"


def test_an_answer_in_json_or_a_call(prepared: Any, accepts: Accepts) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "null"}}, "required": ["x"], "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    grammar, _ = parts(prepared(tools=STRICT, response_format=wanted))
    assert accepts(grammar, '{"x": null}')
    assert accepts(grammar, CALL)
    for text in ("Hello", '{"x": 1}', f'{{"x": null}}{CALL}', hermes("add", "{}")):
        assert not accepts(grammar, text)
    with pytest.raises(InvalidArgumentError, match="beside tools") as caught:
        prepared(structured_outputs={"regex": "a"})
    assert caught.value.field == "structured_outputs.regex"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tools": [ADD, {"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}],
          "tool_choice": "required"}, "tools[1].function.parameters"),
        *(
            ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {
                "type": "object", "properties": {"a": {"type": "integer"}}, "required": required}}}],
              "template": XML_TEMPLATE, "tool_choice": "required"}, "tools[0].function.parameters")
            for required in (True, 5, None, "a", [["a"]])
        ),
        ({"tools": STRICT, "template": MISTRAL_TEMPLATE}, "tools[0].function.strict"),
        ({"parallel_tool_calls": False, "template": MISTRAL_TEMPLATE}, "parallel_tool_calls"),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused_by_name(prepared: Any, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        prepared(**fields)
    assert caught.value.field == field
