"""Reasoning, content and calls as the OpenAI API writes them: in a message, and in the deltas of a stream.

Clients join deltas by appending strings, so a call's id, type and name come once and its arguments in fragments.
"""

from __future__ import annotations

import json
import re
import secrets
import string
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final

from gateway.output_parsers.json_values import well_formed
from gateway.output_parsers.parts import AnswerPart, CallArguments, CallBegin, Content, Reasoning
from gateway.output_parsers.registry import AnswerForm

_ALPHABET: Final = string.ascii_letters + string.digits
_BEGUN_INPUT: Final = re.compile(
    r'\s*\{\s*"input"\s*:\s*("(?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*)(?:\\(?:u[0-9a-fA-F]{0,3})?|"\s*)?\Z'
)
"""The arguments of a custom tool up to somewhere within the string; its last letter may be written in part."""
_HALVES: Final = "".join(map(chr, range(0xD800, 0xDC00)))
"""First halves of letters that JSON writes as two codes."""
_MISTRAL_ID_LENGTH: Final = 9
"""Templates of Mistral's models refuse ids of any other."""


def message(parts: Sequence[AnswerPart], form: AnswerForm, reasoning_fields: Sequence[str]) -> dict[str, Any]:
    """The message of an answer whose parts are all there. Content is null where there is something else instead."""
    reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
    content = "".join(part.text for part in parts if isinstance(part, Content))
    calls: list[tuple[str, list[str]]] = []
    for part in parts:
        if isinstance(part, CallBegin):
            calls.append((part.name, []))
        elif isinstance(part, CallArguments):
            calls[part.call][1].append(part.text)
    body: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if not content and (calls or reasoning):
        body["content"] = None
    if form.names.reasoning is not None and form.include_reasoning:
        body |= dict.fromkeys(reasoning_fields, reasoning or None)
    if calls:
        body["tool_calls"] = [_whole_call(name, "".join(arguments), form) for name, arguments in calls]
    return body


def deltas(
    parts: Sequence[AnswerPart],
    form: AnswerForm,
    calls: StreamedCalls,
    reasoning_fields: Sequence[str],
    *,
    last: bool,
) -> Iterator[dict[str, Any]]:
    """What parts that follow one another add to a choice, a delta each but for a call and its arguments."""
    pending: dict[str, Any] | None = None
    for part in parts:
        if isinstance(part, CallBegin):
            yield from _delta(pending)
            yield from _delta(calls.end())
            pending = calls.begin(part)
        elif isinstance(part, CallArguments):
            pending = calls.arguments(part, pending)
        else:
            yield from _delta(pending)
            pending = None
            if isinstance(part, Content):
                yield {"content": part.text}
            elif form.include_reasoning:
                yield dict.fromkeys(reasoning_fields, part.text)
    yield from _delta(pending)
    if last:
        yield from _delta(calls.end())


class StreamedCalls:
    """The calls of one choice in a stream. The input of a custom tool, a string in JSON, goes out once it is whole."""

    __slots__ = ("_form", "_input")

    def __init__(self, form: AnswerForm) -> None:
        self._form = form
        self._input: tuple[int, list[str]] | None = None

    def begin(self, part: CallBegin) -> dict[str, Any]:
        """The entry of a call that begins."""
        head = {"index": part.call, "id": _new_id(self._form)}
        if part.name in self._form.custom:
            self._input = (part.call, [])
            return {**head, "type": "custom", "custom": {"name": part.name, "input": ""}}
        return {**head, "type": "function", "function": {"name": part.name, "arguments": ""}}

    def arguments(self, part: CallArguments, begun: dict[str, Any] | None) -> dict[str, Any] | None:
        """The entry of a fragment, or `begun` with it where the call begins in the same step."""
        if self._input is not None:
            self._input[1].append(part.text)
            return begun
        if begun is None:
            return {"index": part.call, "function": {"arguments": part.text}}
        begun["function"]["arguments"] += part.text
        return begun

    def end(self) -> dict[str, Any] | None:
        """The entry that ends the call under way, where there is one."""
        if self._input is None:
            return None
        (index, fragments), self._input = self._input, None
        return {"index": index, "custom": {"input": _input("".join(fragments))}}


def _delta(entry: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if entry is not None:
        yield {"tool_calls": [entry]}


def _whole_call(name: str, arguments: str, form: AnswerForm) -> dict[str, Any]:
    if name in form.custom:
        return {"id": _new_id(form), "type": "custom", "custom": {"name": name, "input": _input(arguments)}}
    return {"id": _new_id(form), "type": "function", "function": {"name": name, "arguments": arguments}}


def _input(arguments: str) -> str:
    """The input of a custom tool, its beginning where it was cut off; what the model wrote where it has given none."""
    try:
        given = json.loads(arguments)
    except (ValueError, RecursionError):
        begun = _BEGUN_INPUT.match(arguments)
        if begun is None:
            return arguments
        given = {"input": json.loads(f'{begun[1]}"', strict=False).rstrip(_HALVES)}
    text = given.get("input") if isinstance(given, dict) else None
    return well_formed(text) if isinstance(text, str) else arguments


def _new_id(form: AnswerForm) -> str:
    if form.mistral_ids:
        return "".join(secrets.choice(_ALPHABET) for _ in range(_MISTRAL_ID_LENGTH))
    return f"call_{uuid.uuid4().hex[:24]}"
