"""Errors as the OpenAI API writes them."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from pydantic import ValidationError
from pydantic_core import from_json
from starlette.responses import Response

from gateway.limits import ContextLengthError
from gateway.openai_types import ErrorResponse
from gateway.service import UnknownModelError
from slipstream.rpc.errors import InternalError, InvalidArgumentError, SlipstreamError, UnauthenticatedError, codes_of

_log = logging.getLogger(__name__)


class UnknownFieldError(InvalidArgumentError):
    """The body has a field that the API does not have."""


class UnsupportedFieldError(InvalidArgumentError):
    """The body uses a feature of the OpenAI API that this server does not have."""


class MalformedBodyError(InvalidArgumentError):
    """The body is not JSON in UTF-8."""


_CODES: Final[Mapping[type[SlipstreamError], str]] = {
    ContextLengthError: "context_length_exceeded",
    MalformedBodyError: "invalid_json",
    UnauthenticatedError: "invalid_api_key",
    UnknownFieldError: "unknown_parameter",
    UnknownModelError: "model_not_found",
    UnsupportedFieldError: "unsupported_parameter",
}


def error_body(error: BaseException) -> ErrorResponse:
    """The body for an error; one that is not of the domain is logged and reported without details."""
    if not isinstance(error, SlipstreamError):
        _log.error("unexpected error in a request", exc_info=error)
        error = InternalError("internal error")
    return {
        "error": {
            "message": error.message.encode("utf-8", "replace").decode("utf-8"),
            "type": codes_of(error).openai_type,
            "param": error.field.encode("utf-8", "replace").decode("utf-8") or None,
            "code": _CODES.get(type(error)),
        }
    }


def error_response(error: BaseException) -> Response:
    """The whole answer for an error."""
    codes = codes_of(error)
    headers = {"www-authenticate": "Bearer"} if codes.http == 401 else {}
    if codes.http in (429, 503):
        headers["retry-after"] = str(_retry_seconds(error))
    return Response(orjson.dumps(error_body(error)), codes.http, headers, "application/json")


def _retry_seconds(error: BaseException) -> int:
    """Whole seconds of the Retry-After header, at least 1 (RFC 9110, section 10.2.3)."""
    seconds = error.retry_after if isinstance(error, SlipstreamError) else None
    return max(1, math.ceil(seconds or 0.0))


def plain_error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """An answer for errors of HTTP itself, such as an unknown path."""
    body: ErrorResponse = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}
    return Response(orjson.dumps(body), status, headers, "application/json")


def from_validation(error: ValidationError, body: bytes) -> InvalidArgumentError:
    """The error that says most precisely what is wrong with `body`.

    Of several, as a union's members give, it is the one deepest in the body, and rather about a value than its type.
    """
    details = error.errors(include_url=False)
    if details[0]["type"] == "json_invalid":
        return MalformedBodyError(f"the body is not valid JSON: {details[0].get('ctx', {}).get('error', '')}")
    data = from_json(body)
    located = [(_path(detail["loc"], data), detail) for detail in details]
    path, detail = max(located, key=lambda entry: (len(entry[0]), not entry[1]["type"].endswith("_type")))
    name = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
    kind, message = detail["type"], str(detail["msg"])
    if kind == "extra_forbidden":
        return UnknownFieldError(f"unknown parameter: {name}", field=name)
    if kind == "none_required":
        return UnsupportedFieldError(f"{name} is not supported by this server", field=name)
    if kind == "missing":
        return InvalidArgumentError(f"missing required parameter: {name}", field=name)
    if not name:
        return InvalidArgumentError(message, field=kind if kind in ("stream_options", "top_logprobs", "echo") else "")
    return InvalidArgumentError(f"{name}: {message[:1].lower()}{message[1:]}", field=name)


def _path(location: Sequence[int | str], data: Any) -> list[int | str]:
    """The steps of a validator's location that lead through `data`, without the names of union members."""
    path: list[int | str] = []
    for index, step in enumerate(location):
        inside = (isinstance(data, dict) and step in data) or (
            isinstance(data, list) and isinstance(step, int) and step < len(data)
        )
        if inside:
            data = data[step]
            path.append(step)
        elif isinstance(data, dict) and index == len(location) - 1:
            path.append(step)
    return path
