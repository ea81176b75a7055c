"""Grammars in the form that llguidance compiles."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from llguidance import LLMatcher, regex_to_lark

from slipstream.grammar.grammar import DEFAULT_WHITESPACE, Grammar, StructuralTag, TagRule

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_FREE_TEXT = r"/(.|\n)*/"


def grammar_text(grammar: Grammar, specials: Collection[str] = ()) -> str:
    """Return the grammar as llguidance's JSON, a function of the grammar and the special tokens' texts alone.

    A token is allowed wherever its bytes are: also one that the tokenizer itself would not split a forced text into.

    Raises ValueError for a schema that is no JSON, or nothing at all. Whether it compiles is `check`'s matter.
    """
    grammars = json.loads(_written(grammar, specials))["grammars"]
    first = {**grammars[0], "name": "output"}
    main = {"name": "main", "lark_grammar": '%llguidance {"no_forcing": true}\nstart: @output'}
    return json.dumps({"grammars": [main, first, *grammars[1:]]})


def _written(grammar: Grammar, specials: Collection[str]) -> str:
    match grammar.kind:
        case "json_schema":
            return _schema(grammar, grammar.json_schema or "")
        case "json_object":
            return _schema(grammar, '{"type": "object"}')
        case "regex":
            return _whole(regex_to_lark(grammar.regex or ""))
        case "lark":
            return _lark(grammar.lark or "")
        case "choice":
            return _whole(regex_to_lark("|".join(map(_escaped, grammar.choice or ()))))
        case "structural_tag":
            assert grammar.structural_tag is not None
            return _tagged(grammar, grammar.structural_tag, specials)
    raise ValueError("says nothing that the output must match")


def _schema(grammar: Grammar, schema: str) -> str:
    """Options of the request's own hold against those that the schema names under x-guidance."""
    pattern = DEFAULT_WHITESPACE if grammar.whitespace_pattern is None else grammar.whitespace_pattern
    options: JsonCompileOptions = {
        "item_separator": ",",
        "key_separator": ":",
        "whitespace_flexible": bool(pattern),
        "whitespace_pattern": pattern or None,
        "coerce_one_of": grammar.coerce_one_of,
        "lenient": False,
    }
    return str(LLMatcher.grammar_from_json_schema(schema, overrides=options))


def _lark(text: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": text}]})


def _whole(regex: str) -> str:
    return _lark(f"start: /{regex}/")


def _escaped(text: str) -> str:
    """Return a regular expression that matches this text alone."""
    return "".join(f"\\x{{{ord(letter):x}}}" if not letter.isalnum() else letter for letter in text)


def _quoted(text: str) -> str:
    """Return a string of llguidance's Lark dialect, whose escapes are those of JSON."""
    return json.dumps(text, ensure_ascii=False)


def _literal(text: str, specials: Collection[str]) -> str:
    """Return Lark for a text in which special tokens are the tokens, not their letters."""
    if not text:
        return '""'
    if not specials:
        return _quoted(text)
    names = "|".join(re.escape(name) for name in sorted(specials, key=len, reverse=True))
    parts = re.split(f"({names})", text)
    return " ".join(_special(part) if part in specials else _quoted(part) for part in parts if part)


def _special(name: str) -> str:
    if re.fullmatch(r"<[^<>\s]*>", name):
        return name
    raise ValueError(f"the special token {name!r} cannot be written in a grammar")


def _content(grammar: Grammar, tag: TagRule) -> str:
    if tag.json_schema is not None:
        return _schema(grammar, tag.json_schema)
    if tag.regex is not None:
        return _whole(regex_to_lark(tag.regex))
    return _lark(tag.lark or "")


def _tagged(grammar: Grammar, tags: StructuralTag, specials: Collection[str]) -> str:
    """Return a grammar of free text, whose lexeme ends where a trigger is complete, and tags.

    Each tag's content is a grammar of its own, so that its rules have names of their own.
    """
    rules, contents = [], []
    for number, tag in enumerate(tags.tags):
        named = json.loads(_content(grammar, tag))["grammars"][0]
        contents.append({**named, "name": f"content_{number}"})
        rules += _tag_rules(number, tag, tags, specials)
    units = " | ".join(f"tag_{number}" for number in range(len(tags.tags)))
    lark = "\n".join(["%llguidance {}", f"start: {_start(tags)}", f"unit: {units}", f"TEXT: {_FREE_TEXT}", *rules])
    return json.dumps({"grammars": [{"name": "tags", "lark_grammar": lark}, *contents]})


def _start(tags: StructuralTag) -> str:
    if tags.no_free_text:
        return "unit" if tags.stop_after_first else "unit+"
    if tags.stop_after_first:
        return "unit" if tags.at_least_one else "unit | TEXT"
    return f"unit{'+' if tags.at_least_one else '*'} TEXT"


def _tag_rules(number: int, tag: TagRule, tags: StructuralTag, specials: Collection[str]) -> list[str]:
    rest = f"@content_{number} {_literal(tag.end, specials)}"
    if tags.no_free_text:
        return [f"tag_{number}: {_literal(tag.begin, specials)} {rest}"]
    behind = f"{_literal(tag.begin.removeprefix(tag.trigger), specials)} {rest}"
    if tag.trigger in specials:
        return [f"tag_{number}: TEXT {_special(tag.trigger)} {behind}"]
    return [f"trigger_{number}[lazy]: TEXT {_quoted(tag.trigger)}", f"tag_{number}: trigger_{number} {behind}"]
