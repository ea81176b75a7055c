"""What a checkpoint says of its answers: response_template in tokenizer_config.json, as transformers 5.13 has it.

It is read as data, and used where it describes a form that the parsers here know: reasoning between two literals, calls
as JSON between two literals, or calls in Qwen3-Coder's tags. Anything else is left to the chat template.
"""

from __future__ import annotations

import re
from typing import Any, Final

from gateway.output_parsers.registry import Names, Tags

_WHITESPACE: Final = re.compile(r"^\\s[*+]|\\s[*+]$")
_SPECIAL: Final = re.compile(r"(?<!\\)[.^$*+?{}\[\]()]|\\[a-zA-Z]")
_LONGEST: Final = 256


def names_of_template(spec: Any) -> Names:
    """The parsers of answers so described, and their tags; fields are None where it describes none that is known."""
    fields = spec.get("fields") if isinstance(spec, dict) else None
    if not isinstance(fields, dict):
        return Names()
    thinking, calls = _tags(fields.get("thinking")), fields.get("tool_calls")
    reasoning = None if thinking is None else "tags"
    if not isinstance(calls, dict):
        return Names(None, reasoning, reasoning_tags=thinking)
    opening = str(calls.get("open") or calls.get("open_pattern") or "")
    if "<function=" in opening and calls.get("content") in ("xml-inline", "xml"):
        return Names("qwen3_coder", reasoning, reasoning_tags=thinking)
    tags = _tags(calls)
    whole = calls.get("transform") in (None, {"type": "function", "function": "{content}"})
    if tags is None or calls.get("content") != "json" or calls.get("content_args") or not whole:
        return Names(None, reasoning, reasoning_tags=thinking)
    return Names("hermes", reasoning, tool_tags=tags, reasoning_tags=thinking)


def _tags(field: Any) -> Tags | None:
    """The literals around a field; None where it has none, or they are patterns."""
    if not isinstance(field, dict):
        return None
    opening, closing = (_literal(field, end) for end in ("open", "close"))
    return Tags(opening, closing) if opening and closing and opening != closing else None


def _literal(field: dict[str, Any], end: str) -> str | None:
    literal, pattern = field.get(end), field.get(f"{end}_pattern")
    if isinstance(pattern, str):
        inner = _WHITESPACE.sub("", pattern)
        literal = None if _SPECIAL.search(inner) else re.sub(r"\\(.)", r"\1", inner)
    if isinstance(literal, list) and len(literal) == 1:
        literal = literal[0]
    if not isinstance(literal, str) or not 0 < len(literal) <= _LONGEST:
        return None
    return literal.strip("\n")
