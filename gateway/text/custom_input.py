"""What holds a call's input, be it JSON of a schema or a text of a grammar in Lark."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from llguidance import regex_to_lark

from gateway.lark_in_json.encoding import AS_IT_IS, IN_JSON, Encoding
from gateway.lark_in_json.error import LarkError
from gateway.lark_in_json.rewrite import Rewritten, rewritten
from gateway.openai.tools import CustomTool, FunctionTool, grammar_of
from slipstream.grammar.grammar import Grammar
from slipstream.rpc.errors import InvalidArgumentError

_BEGIN: Final = '{"input": "'
_END: Final = '"}'


@dataclass(frozen=True, slots=True)
class ToolInput:
    """The schema of a call's arguments; and what holds them in its place where they are a text of a grammar."""

    schema: str
    text: Rewritten | None = None

    @property
    def json_schema(self) -> str | None:
        """The schema, where that holds the arguments."""
        return self.schema if self.text is None else None

    @property
    def lark(self) -> str | None:
        """The object around the text, where that holds the arguments."""
        return None if self.text is None else "\n".join([f"start: {in_object(self.text)}", *self.text.lines])

    @property
    def grammar(self) -> Grammar:
        """What holds the arguments, for themselves."""
        return Grammar(json_schema=self.json_schema, lark=self.lark)


def in_object(text: Rewritten) -> str:
    """An expression of Lark for the arguments whose `input` is the text."""
    return f"{_quoted(_BEGIN)} {text.start} {_quoted(_END)}"


def text_in_json(tool: FunctionTool | CustomTool, prefix: str, field: str) -> Rewritten | None:
    """The input of a custom tool with a grammar in Lark, in rules whose names begin with `prefix`; None for others.

    A regular expression holds its string as the pattern of a schema. InvalidArgumentError naming the field.
    """
    grammar = grammar_of(tool)
    if grammar is None or grammar.syntax == "regex":
        return None
    return _rewritten(grammar.definition, IN_JSON, prefix, field)


def line_in_tags(tool: FunctionTool | CustomTool, before: str, behind: str, field: str) -> str | None:
    """Lark for the input of a custom tool with a grammar, as it is, between two texts; `behind` begins a new line.

    None where an input may have more than one line, or the letters of what ends it: no lexer would know its end; and
    for regular expressions that schemas alone take. InvalidArgumentError naming the field.
    """
    grammar = grammar_of(tool)
    assert grammar is not None
    if grammar.syntax == "lark":
        text = _rewritten(grammar.definition, AS_IT_IS, "c", field)
    else:
        try:
            text = rewritten(f"start: /{regex_to_lark(grammar.definition)}/", AS_IT_IS)
        except LarkError:
            return None
    if text.can_hold("\n") or text.can_hold(behind.strip()):
        return None
    return "\n".join([f"start: {_quoted(before)} {text.start} {_quoted(behind)}", *text.lines])


def _rewritten(definition: str, encoding: Encoding, prefix: str, field: str) -> Rewritten:
    try:
        return rewritten(definition, encoding, prefix)
    except LarkError as error:
        raise InvalidArgumentError(f"{field} cannot be enforced: {error}", field=field) from error


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
