"""From the bytes of a body to a checked one, or to the error that says most precisely what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from gateway.core.limits import shortened
from gateway.openai.fields import UNSUPPORTED_KIND, Body
from gateway.openai.logit_bias import check_repeated_keys
from gateway.openai.schema import GenerationBody
from gateway.text.json_values import KEYS_OF_AN_OBJECT, TOO_DEEP, MalformedBodyError, Values, bounded, check_keys
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
    if isinstance(body, GenerationBody) and body.logit_bias:
        check_repeated_keys(written)
    return body, values


def _decoded(json: bytes | bytearray) -> Any:
    try:
        return from_json(json)
    except ValueError as error:
        raise _malformed(str(error)) from None


def _malformed(reason: str) -> MalformedBodyError:
    return MalformedBodyError(TOO_DEEP if "recursion limit" in reason else f"the body is not valid JSON: {reason}")


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
    located = [(_path(detail["loc"], data), detail) for detail in details]
    path, detail = max(located, key=lambda entry: (len(entry[0]), not entry[1]["type"].endswith("_type")))
    name = "".join(f"[{step}]" if isinstance(step, int) else f".{shortened(step)}" for step in path).lstrip(".")
    kind, message = detail["type"], str(detail["msg"])
    if kind == "none_required":  # of fields that are declared nowhere
        return UnknownFieldError(f"unknown parameter: {name}", field=name)
    if kind == UNSUPPORTED_KIND:
        return UnsupportedFieldError(f"{name} {message}", field=name)
    if kind == "best_of":
        return UnsupportedFieldError(message, field=kind)
    if kind == "missing":
        return InvalidArgumentError(f"missing required parameter: {name}", field=name)
    if not name:
        return InvalidArgumentError(message, field=kind if kind in _CROSS_CHECKED else "")
    return InvalidArgumentError(f"{name}: {message[:1].lower()}{message[1:]}", field=name)


def _path(location: Sequence[int | str], data: Any) -> list[int | str]:
    """The steps of a validator's location that lead through `data`, without the names of union members.

    A step that is not in the data is one of a field that is missing, if it is the last, and no such name.
    """
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
        elif isinstance(data, dict) and index == len(location) - 1 and not str(step).startswith("literal["):
            path.append(step)
    return path
