"""The grammar that a request's fields ask for, and its check: refusals bear the field's name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from gateway.openai.schema import GenerationBody
from gateway.openai.structured import JsonSchemaFormat, StructuralTagFormat, StructuredOutputs, TextFormat
from gateway.text.json_values import Values
from slipstream.grammar.check import check, check_sizes
from slipstream.grammar.grammar import Grammar, StructuralTag, TagRule
from slipstream.grammar.tokenizer import GrammarTokenizer
from slipstream.rpc.errors import InvalidArgumentError

_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
ANY_OBJECT: Final = '{"type": "object"}'

Check = Callable[[], object]
"""Checks a grammar that has been read. InvalidArgumentError naming its field and what cannot be enforced."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A grammar, and the field of the body that says it."""

    grammar: Grammar
    field: str


def wanted_grammar(body: GenerationBody, values: Values) -> Wanted | None:
    """What the text of an answer has to match, `sized`. InvalidArgumentError for two fields that both say it."""
    form, options = body.response_format, body.structured_outputs
    if form is not None and not isinstance(form, TextFormat):
        if options is not None:
            reason = "structured_outputs and response_format exclude each other"
            raise InvalidArgumentError(reason, field="structured_outputs")
        return sized(_of_format(form, values))
    return None if options is None else sized(_of_options(options, values))


def _of_format(form: Any, values: Values) -> Wanted:
    if isinstance(form, JsonSchemaFormat):
        schema = schema_text(form.json_schema.schema_, values)
        return Wanted(Grammar(json_schema=schema), "response_format.json_schema.schema")
    if isinstance(form, StructuralTagFormat):
        return Wanted(Grammar(structural_tag=_tags(form, values, "response_format")), "response_format")
    return Wanted(Grammar(json_object=True), "response_format")


def _of_options(options: StructuredOutputs, values: Values) -> Wanted:
    pattern = "" if options.disable_any_whitespace else options.whitespace_pattern
    makers: dict[str, Callable[[Any], Grammar]] = {
        "json": lambda schema: Grammar(
            json_schema=schema if isinstance(schema, str) else schema_text(schema, values), whitespace_pattern=pattern
        ),
        "json_object": lambda _: Grammar(json_object=True, whitespace_pattern=pattern),
        "regex": lambda regex: Grammar(regex=regex),
        "grammar": lambda lark: Grammar(lark=_lark(lark)),
        "choice": lambda texts: Grammar(choice=tuple(dict.fromkeys(texts))),
        "structural_tag": lambda form: Grammar(
            structural_tag=_tags(form, values, "structured_outputs.structural_tag"), whitespace_pattern=pattern
        ),
    }
    for name, make in makers.items():
        value = getattr(options, "json_" if name == "json" else name)
        if value is not None:
            return Wanted(make(value), f"structured_outputs.{name}")
    raise AssertionError("one of them is given")


def schema_text(schema: dict[str, Any] | None, values: Values) -> str:
    """A schema as text; that of any object where there is none."""
    return ANY_OBJECT if schema is None else json.dumps(values.whole(schema), ensure_ascii=False)


def _lark(text: str) -> str:
    if "::=" in text:
        raise InvalidArgumentError(
            "structured_outputs.grammar is read as Lark, and this looks like GBNF or EBNF (::=)",
            field="structured_outputs.grammar",
        )
    return text


def _tags(form: StructuralTagFormat, values: Values, field: str) -> StructuralTag:
    tags = []
    for index, structure in enumerate(form.structures):
        trigger = next((trigger for trigger in form.triggers if structure.begin.startswith(trigger)), None)
        if trigger is None:
            place = f"{field}.structures[{index}].begin"
            raise InvalidArgumentError(f"{place} must start with one of the triggers", field=place)
        tags.append(
            TagRule(trigger, structure.begin, structure.end, json_schema=schema_text(structure.schema_, values))
        )
    return StructuralTag(tuple(tags))


def sized(wanted: Wanted) -> Wanted:
    """The same, if its texts are not too long to be handed on. InvalidArgumentError naming its field and the limit."""
    with _named(wanted.field):
        check_sizes(wanted.grammar)
    return wanted


def checked(wanted: Wanted, tokens: Callable[[], GrammarTokenizer] | None = None) -> Grammar:
    """The grammar, if it can be enforced. InvalidArgumentError naming its field and what cannot.

    `tokens` reads the tokenizer where the grammar names tokens. The check recurses as deep as schemas do: text workers
    have the stack for it.
    """
    named = tokens is not None and "<" in _STRINGS.sub("", wanted.grammar.lark or "")
    with _named(wanted.field):
        check(wanted.grammar, tokens() if tokens is not None and named else None, run=lambda work: work())
    return wanted.grammar


@contextmanager
def _named(field: str) -> Iterator[None]:
    """Errors within are of this field."""
    try:
        yield
    except InvalidArgumentError as error:
        message = error.message.removeprefix(error.field).lstrip()
        raise InvalidArgumentError(f"{field} {message}", field=field) from error
