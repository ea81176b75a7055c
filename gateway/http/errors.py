"""Errors as the OpenAI API writes them."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Final

import orjson
from starlette.responses import Response

from gateway.core.limits import ContextLengthError, UnknownModelError, shortened
from gateway.openai.types import ErrorResponse
from gateway.text.body import UnknownFieldError, UnsupportedFieldError
from gateway.text.json_values import MalformedBodyError
from slipstream.rpc.errors import InternalError, SlipstreamError, UnauthenticatedError, codes_of

_log = logging.getLogger(__name__)


_CODES: Final[Mapping[type[SlipstreamError], str]] = {
    ContextLengthError: "context_length_exceeded",
    MalformedBodyError: "invalid_json",
    UnauthenticatedError: "invalid_api_key",
    UnknownFieldError: "unknown_parameter",
    UnknownModelError: "model_not_found",
    UnsupportedFieldError: "unsupported_parameter",
}


def error_body(error: BaseException, request_id: str = "") -> ErrorResponse:
    """The body for an error; one not of the domain is logged with the request's id, and reported without details."""
    if not isinstance(error, SlipstreamError):
        _log.error("unexpected error in request %s", request_id or "without id", exc_info=error)
        error = InternalError("internal error")
    return {
        "error": {
            "message": error.message.encode("utf-8", "replace").decode("utf-8"),
            "type": codes_of(error).openai_type,
            "param": error.field.encode("utf-8", "replace").decode("utf-8") or None,
            "code": _CODES.get(type(error)),
        }
    }


def error_response(error: BaseException, request_id: str = "") -> Response:
    """The whole answer for an error; `request_id` is for the log."""
    codes = codes_of(error)
    headers = {"www-authenticate": "Bearer"} if codes.http == 401 else {}
    if codes.http in (429, 503):
        headers["retry-after"] = str(_retry_seconds(error))
    return Response(orjson.dumps(error_body(error, request_id)), codes.http, headers, "application/json")


def _retry_seconds(error: BaseException) -> int:
    """Whole seconds of the Retry-After header, at least 1 (RFC 9110, section 10.2.3)."""
    seconds = error.retry_after if isinstance(error, SlipstreamError) else None
    return max(1, math.ceil(seconds or 0.0))


def unknown_path(method: str, path: str) -> Response:
    """The answer where there is no endpoint, under OpenAI's own code for it."""
    message = f"{method} {shortened(path)} is not supported by this server; GET /openapi.json lists what is"
    return plain_error(404, message, code="unknown_url")


def plain_error(
    status: int, message: str, headers: Mapping[str, str] | None = None, code: str | None = None
) -> Response:
    """An answer for errors of HTTP itself."""
    body: ErrorResponse = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
    return Response(orjson.dumps(body), status, headers, "application/json")
