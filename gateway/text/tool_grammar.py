"""Grammars that force calls, or hold them to their schemas, in the form in which the model writes calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from gateway.openai.tools import (
    CustomTool,
    FunctionTool,
    ToolPolicy,
    grammar_of,
    held_schema_of,
    is_strict,
    is_string,
    name_of,
)
from gateway.output_parsers.registry import FORCED, Names, Tags
from gateway.text.body import UnsupportedFieldError
from gateway.text.custom_input import ToolInput, in_object, line_in_tags, text_in_json
from gateway.text.grammars import ANY_OBJECT, Check, Wanted, checked, sized
from gateway.text.json_values import Values
from slipstream.grammar.check import MAX_BYTES
from slipstream.grammar.grammar import DEFAULT_WHITESPACE, Grammar, StructuralTag, TagRule
from slipstream.rpc.errors import InvalidArgumentError

_XML: Final = "<tool_call>"
_BARE: Final = '{"name": "'
_LIMITS_OF_STRINGS: Final = ("pattern", "format", "minLength", "maxLength")


@dataclass(frozen=True, slots=True)
class ToolGrammar:
    """A grammar, and the parser that reads what it lets through. No grammar: calls are left to the model.

    `check` says whether the grammar can be enforced, and names the tool where it cannot.
    """

    grammar: Grammar | None
    parser: str | None
    check: Check | None = None


def tool_grammar(
    tools: Sequence[FunctionTool | CustomTool], policy: ToolPolicy, values: Values, names: Names
) -> ToolGrammar:
    """What holds the calls of an answer to what the request says of them.

    `names.tools` is the parser of the model's own form. Models whose form no grammar can write are forced into bare
    JSON; where calls stand in free text UnsupportedFieldError names the field. InvalidArgumentError names what is too
    long.
    """
    parser = names.tools
    allowed = [(index, tools[index]) for index in policy.allowed]
    strict = any(is_strict(tool) for _, tool in allowed)
    if not policy.required and not strict and not (policy.limited and allowed):
        return ToolGrammar(None, parser)
    inputs = {index: _input(index, tool, values, forced=policy.required) for index, tool in allowed}
    form, used = _form(allowed, inputs, names)
    if form is None:
        if not policy.required:
            _refuse(allowed, policy, parser)
        form, used = [_bare(tool, inputs[index], '"parameters"') for index, tool in allowed], FORCED
    tags = StructuralTag(
        tuple(form),
        at_least_one=policy.required,
        no_free_text=policy.required,
        stop_after_first=not policy.parallel,
    )
    grammar = Grammar(structural_tag=tags)

    def ask(check: Callable[[Wanted], object]) -> None:
        try:
            check(Wanted(grammar, "tools"))
        except InvalidArgumentError:
            for index, tool in allowed:
                check(Wanted(inputs[index].grammar, _input_field(index, tool)))
            raise

    ask(sized)
    return ToolGrammar(grammar, used, partial(ask, checked))


def _input_field(index: int, tool: FunctionTool | CustomTool) -> str:
    if isinstance(tool, FunctionTool):
        return f"tools[{index}].function.parameters"
    return f"tools[{index}].custom.format.grammar.definition"


def either(
    wanted: Wanted, tools: Sequence[FunctionTool | CustomTool], policy: ToolPolicy, values: Values, names: Names
) -> Wanted:
    """The grammar of an answer that is JSON as wanted, or calls. UnsupportedFieldError where none can be written."""
    schema = ANY_OBJECT if wanted.grammar.json_object else wanted.grammar.json_schema
    if schema is None or names.tools != "hermes":
        reason = (
            f"{wanted.field} is not supported beside tools that may be called, in this model's form or of this kind"
        )
        raise UnsupportedFieldError(f'{reason}; tool_choice may be "none" or "required"', field=wanted.field)
    pattern = wanted.grammar.whitespace_pattern
    pattern = DEFAULT_WHITESPACE if pattern is None else pattern
    rules = [
        f"start: answer | {'call+' if policy.parallel else 'call'}",
        f"answer: {_json_rule(schema, pattern, wanted)}",
    ]
    rules.append(f"call: {' | '.join(f'call_{index}' for index in policy.allowed)}")
    for index in policy.allowed:
        given = _input(index, tools[index], values, forced=False)
        tag = _hermes(tools[index], given, names.around_calls)
        rules.append(f"call_{index}: {_quoted(tag.begin)} arguments_{index} {_quoted(tag.end)}")
        if given.text is None:
            rules.append(f"arguments_{index}: {_json_rule(given.schema, pattern, wanted)}")
        else:
            rules += [f"arguments_{index}: {in_object(given.text)}", *given.text.lines]
    return Wanted(Grammar(lark="\n".join(rules)), wanted.field)


def _json_rule(text: str, pattern: str, wanted: Wanted) -> str:
    """JSON within Lark of a schema that a request gives as text, whose size is checked before it is decoded."""
    size = len(text.encode(errors="replace"))
    if size > MAX_BYTES:
        raise InvalidArgumentError(f"{wanted.field} has {size} bytes, the limit is {MAX_BYTES}", field=wanted.field)
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        raise InvalidArgumentError(f"{wanted.field} must be a JSON Schema, an object", field=wanted.field)
    return _json(schema, pattern)


def _json(schema: dict[str, Any], pattern: str) -> str:
    """JSON of a schema within Lark, where the schema itself says how white space is written."""
    options: dict[str, Any] = {"item_separator": ",", "key_separator": ":", "whitespace_flexible": bool(pattern)}
    if pattern:
        options["whitespace_pattern"] = pattern
    return f"%json {json.dumps(schema | {'x-guidance': options}, ensure_ascii=False)}"


def _input(index: int, tool: FunctionTool | CustomTool, values: Values, *, forced: bool) -> ToolInput:
    if not (forced or is_strict(tool)):
        return ToolInput(ANY_OBJECT)
    return ToolInput(
        json.dumps(values.whole(held_schema_of(tool)), ensure_ascii=False),
        text_in_json(tool, f"c{index}x", _input_field(index, tool)),
    )


def _refuse(allowed: Sequence[tuple[int, FunctionTool | CustomTool]], policy: ToolPolicy, parser: str | None) -> None:
    if policy.limited:
        field = "tool_choice" if policy.parallel else "parallel_tool_calls"
    else:
        index, tool = next((index, tool) for index, tool in allowed if is_strict(tool))
        field = f"tools[{index}].{'function.strict' if isinstance(tool, FunctionTool) else 'custom.format'}"
    reason = f"{field}: calls in free text cannot be held to it in this model's form ({parser or 'none'})"
    raise UnsupportedFieldError(f'{reason}; tool_choice "required" can', field=field)


def _form(
    allowed: Sequence[tuple[int, FunctionTool | CustomTool]], inputs: Mapping[int, ToolInput], names: Names
) -> tuple[list[TagRule] | None, str | None]:
    """Tags in the model's own form; None where there are none."""
    parser = names.tools
    match parser:
        case "hermes":
            return [_hermes(tool, inputs[index], names.around_calls) for index, tool in allowed], parser
        case "llama3_json":
            return [_bare(tool, inputs[index], '"parameters"') for index, tool in allowed], parser
        case "qwen3_coder":
            tags = [_xml_call(index, tool, json.loads(inputs[index].schema)) for index, tool in allowed]
            return ([tag for tag in tags if tag is not None], parser) if all(tags) else (None, None)
    return None, None


def _hermes(tool: FunctionTool | CustomTool, given: ToolInput, tags: Tags) -> TagRule:
    begin = f'{tags.opening}\n{{"name": {json.dumps(name_of(tool))}, "arguments": '
    return TagRule(tags.opening, begin, f"}}\n{tags.closing}", json_schema=given.json_schema, lark=given.lark)


def _bare(tool: FunctionTool | CustomTool, given: ToolInput, key: str) -> TagRule:
    begin = f'{{"name": {json.dumps(name_of(tool))}, {key}: '
    return TagRule(_BARE, begin, "}", json_schema=given.json_schema, lark=given.lark)


def _xml_call(index: int, tool: FunctionTool | CustomTool, schema: dict[str, Any]) -> TagRule | None:
    """A call in tags; None where there is no such form of it."""
    begin, end = f"{_XML}\n<function={name_of(tool)}>\n", "</function>\n</tool_call>"
    if grammar_of(tool) is None:
        lark = _xml(schema)
    else:
        lark = line_in_tags(tool, "<parameter=input>\n", "\n</parameter>\n", _input_field(index, tool))
    return None if lark is None else TagRule(_XML, begin, end, lark=lark)


def _xml(schema: dict[str, Any]) -> str | None:
    """Parameters in tags; None where a schema says more than that there are some, in order, some of them needed."""
    properties, required = schema.get("properties"), schema.get("required", [])
    known = {"type", "properties", "required", "additionalProperties", "$defs", "description", "title", "$schema"}
    if (
        not isinstance(properties, dict)
        or set(schema) - known
        or schema.get("additionalProperties") not in (None, False)
        or not (isinstance(required, list) and all(isinstance(name, str) for name in required))
    ):
        return None
    rules, places = [], []
    for number, (key, entry) in enumerate(properties.items()):
        value = _xml_value(number, entry, schema.get("$defs"))
        if value is None or ">" in key or "\n" in key:
            return None
        rules += [f"p{number}: {_quoted(f'<parameter={key}>' + chr(10))} v{number}", *value]
        places.append(f"p{number}" if key in required else f"p{number}?")
    return "\n".join([f"start: {' '.join(places) or _quoted('')}", *rules])


def _xml_value(number: int, schema: Any, definitions: Any) -> list[str] | None:
    """Rules for a value and its end tag."""
    end = "\n</parameter>\n"
    if not isinstance(schema, dict):
        return None
    if is_string(schema):
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if values is not None:
            if not (values and isinstance(values, list) and all(isinstance(value, str) for value in values)):
                return None
            return [f"v{number}: ({' | '.join(map(_quoted, values))}) {_quoted(end)}"]
        if any(name in schema for name in _LIMITS_OF_STRINGS):
            return None
        return [f"v{number}[suffix={_quoted(end)}]: /(.|\\n)*/"]
    whole = schema if definitions is None else schema | {"$defs": definitions}
    return [f"v{number}: j{number} {_quoted(end)}", f"j{number}: {_json(whole, DEFAULT_WHITESPACE)}"]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
