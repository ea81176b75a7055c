"""From the bytes of a body to a checked one, or to the error that says most precisely what is wrong with it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails, from_json, to_json

from gateway.core.limits import shortened
from gateway.openai.fields import UNSUPPORTED_KIND, Body
from gateway.text.json_values import KEYS_OF_AN_OBJECT, TOO_DEEP, MalformedBodyError, Values, bounded, check_keys
from gateway.text.repeated_keys import check_repeated_keys
from slipstream.rpc.errors import InvalidArgumentError

B = TypeVar("B", bound=Body)


class UnknownFieldError(InvalidArgumentError):
    """The body has a field that the API does not have."""


class UnsupportedFieldError(InvalidArgumentError):
    """The body uses a feature of the OpenAI API that this server does not have."""


def read_body(raw: bytes | bytearray, kind: type[B]) -> tuple[B, Values]:
    """Decode and check a body. Costs a bounded multiple of the body, whatever is in it.

    InvalidArgumentError naming the field. Long lists of token ids are in the second part, see `Values.ids`.
    """
    values = bounded(raw)
    written = values.json
    if values.json.count(b":") > KEYS_OF_AN_OBJECT:
        # What is checked next has each key once, so that each object makes a bounded number of errors.
        tree = _decoded(values.json)
        check_keys(tree)
        values = Values(to_json(tree, inf_nan_mode="constants"), values.lists)
    try:
        body = kind.model_validate_json(values.json)
    except ValidationError as error:
        raise from_validation(error, values.json) from None
    check_repeated_keys(written, _ignored(kind))
    return body, values


@functools.cache
def _ignored(kind: type[Body]) -> frozenset[str]:
    """Fields of a body that are without effect, whatever they are."""
    return frozenset(name for name, field in kind.model_fields.items() if field.annotation is Any)


def _decoded(json: bytes | bytearray) -> Any:
    try:
        return from_json(json)
    except ValueError as error:
        raise _malformed(str(error)) from None


def _malformed(reason: str) -> MalformedBodyError:
    return MalformedBodyError(TOO_DEEP if "recursion limit" in reason else f"the body is not valid JSON: {reason}")


_WANTED: Final = "Input should be "

_CROSS_CHECKED: Final = frozenset(
    {
        "stream_options",
        "speculation.trace",
        "top_logprobs",
        "prompt_logprobs",
        "max_tokens",
        "max_completion_tokens",
        "prompt",
        "tools",
        "tool_choice",
    }
)
"""Fields whose errors bear their name: what is wrong is how they go together with others."""


def from_validation(error: ValidationError, body: bytes | bytearray) -> InvalidArgumentError:
    """The error that says most precisely what is wrong with `body`.

    Of several, as a union's members give, it is the one deepest in the body, and rather about a value than its type.
    """
    details = error.errors(include_url=False, include_input=False)
    if details[0]["type"] == "json_invalid":
        return _malformed(str(details[0].get("ctx", {}).get("error", "")))
    data = from_json(body)
    located = [(_path(detail, data), detail) for detail in details]
    path, detail = max(located, key=_precision)
    name = "".join(f"[{step}]" if isinstance(step, int) else f".{shortened(step)}" for step in path).lstrip(".")
    kind, message = detail["type"], _message(detail, [other for place, other in located if place == path])
    if kind == "none_required":  # of fields that are declared nowhere
        return UnknownFieldError(f"unknown parameter: {name}", field=name)
    if kind == UNSUPPORTED_KIND:
        return UnsupportedFieldError(f"{name} {message}", field=name)
    if kind == "best_of":
        return UnsupportedFieldError(message, field=kind)
    if kind in ("missing", "union_tag_not_found"):
        return InvalidArgumentError(f"missing required parameter: {name}", field=name)
    if kind in _CROSS_CHECKED and not name:
        return InvalidArgumentError(message, field=kind)
    name_or_body = name or "the body"
    return InvalidArgumentError(f"{name_or_body}: {message[:1].lower()}{message[1:]}", field=name)


def _precision(located: tuple[Sequence[int | str], ErrorDetails]) -> tuple[int, bool, bool, int]:
    """Of errors that the members of a union give: the deepest, about a value, about the member, far in its list."""
    path, detail = located
    last = path[-1] if path else 0
    kind = detail["type"]
    is_about_value = not kind.endswith("_type")
    return len(path), is_about_value, kind.startswith("union_tag"), last if isinstance(last, int) else 0


def _message(detail: ErrorDetails, beside: Sequence[ErrorDetails]) -> str:
    """What is wrong; `beside` are all errors of the same place, itself included."""
    message, kind = str(detail["msg"]), detail["type"]
    if kind == "union_tag_invalid":
        return f"Input should be {detail['ctx']['expected_tags'].replace(', ', ' or ')}"
    if detail["loc"][-1:] == ("[key]",):
        return message.replace("String", "The key", 1)
    if kind.endswith("_type"):
        wanted = [str(each["msg"]) for each in beside if each["type"].endswith("_type")]
        if all(each.startswith(_WANTED) for each in wanted):
            return _WANTED + " or ".join(dict.fromkeys(each.removeprefix(_WANTED) for each in wanted))
    return message


def _path(detail: ErrorDetails, data: Any) -> list[int | str]:
    """The steps of an error's location that lead through `data`, without the names of union members.

    A last step that is not in the data is a field that is missing.
    """
    location = detail["loc"]
    path: list[int | str] = []
    tagged: Any = None  # the object whose member of a union has been named already, by its type
    for index, step in enumerate(location):
        if isinstance(data, dict) and data is not tagged and step == data.get("type") and index < len(location) - 1:
            tagged = data
            continue
        inside = (isinstance(data, dict) and step in data) or (
            isinstance(data, list) and isinstance(step, int) and step < len(data)
        )
        if inside:
            data = data[step]
            path.append(step)
        elif isinstance(data, dict) and index == len(location) - 1 and detail["type"] == "missing":
            path.append(step)
    if detail["type"] in ("union_tag_invalid", "union_tag_not_found"):
        path.append(detail["ctx"]["discriminator"].strip("'"))
    return path
