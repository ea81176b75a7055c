"""Domain errors and the one table that maps them to gRPC status and HTTP codes.

Services raise these; only the RPC and HTTP edges translate them.

    SlipstreamError
      InvalidArgumentError      a field is out of range or malformed; `field` names it
        PayloadTooLargeError
        UnsupportedMediaTypeError
      NotFoundError
      UnauthenticatedError
      PermissionDeniedError
      FailedPreconditionError
      ResourceExhaustedError    a limit of the moment; retry later
      UnavailableError          loading, draining or gone; retry with backoff
      DeadlineExceededError
      CancelledError
      InternalError
"""

from __future__ import annotations

from dataclasses import dataclass

import grpc


class SlipstreamError(Exception):
    """Base of all domain errors.

    `field` is the offending field as the client wrote it, or empty. `retry_after` is the number of seconds after which
    the same request may succeed, where the raiser can tell.
    """

    def __init__(self, message: str, *, field: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_after = retry_after


class InvalidArgumentError(SlipstreamError):
    """A request that will never succeed as it stands. The message names the field and the limit."""


class PayloadTooLargeError(InvalidArgumentError):
    """A request body or message beyond the stated size."""


class UnsupportedMediaTypeError(InvalidArgumentError):
    """A request body that is not declared as what the API reads."""


class NotFoundError(SlipstreamError):
    """Something named in the request does not exist, such as a model."""


class UnauthenticatedError(SlipstreamError):
    """Missing or wrong credentials."""


class PermissionDeniedError(SlipstreamError):
    """Known credentials that do not allow this."""


class FailedPreconditionError(SlipstreamError):
    """The two ends do not fit: versions, fingerprints, vocabularies."""


class ResourceExhaustedError(SlipstreamError):
    """A queue or pool is full for the moment."""


class UnavailableError(SlipstreamError):
    """The service is loading, draining or unreachable."""


class DeadlineExceededError(SlipstreamError):
    """The caller's deadline has passed."""


class CancelledError(SlipstreamError):
    """The caller went away."""


class InternalError(SlipstreamError):
    """A bug of ours, reported without its details."""


@dataclass(frozen=True, slots=True)
class ErrorCodes:
    """How one kind of error leaves the process: gRPC status, HTTP code and OpenAI error type."""

    status: grpc.StatusCode
    http: int
    openai_type: str


_CODES: dict[type[SlipstreamError], ErrorCodes] = {
    PayloadTooLargeError: ErrorCodes(grpc.StatusCode.INVALID_ARGUMENT, 413, "invalid_request_error"),
    UnsupportedMediaTypeError: ErrorCodes(grpc.StatusCode.INVALID_ARGUMENT, 415, "invalid_request_error"),
    InvalidArgumentError: ErrorCodes(grpc.StatusCode.INVALID_ARGUMENT, 400, "invalid_request_error"),
    NotFoundError: ErrorCodes(grpc.StatusCode.NOT_FOUND, 404, "not_found_error"),
    UnauthenticatedError: ErrorCodes(grpc.StatusCode.UNAUTHENTICATED, 401, "authentication_error"),
    PermissionDeniedError: ErrorCodes(grpc.StatusCode.PERMISSION_DENIED, 403, "permission_error"),
    FailedPreconditionError: ErrorCodes(grpc.StatusCode.FAILED_PRECONDITION, 409, "conflict_error"),
    ResourceExhaustedError: ErrorCodes(grpc.StatusCode.RESOURCE_EXHAUSTED, 429, "rate_limit_error"),
    UnavailableError: ErrorCodes(grpc.StatusCode.UNAVAILABLE, 503, "service_unavailable_error"),
    DeadlineExceededError: ErrorCodes(grpc.StatusCode.DEADLINE_EXCEEDED, 504, "timeout_error"),
    CancelledError: ErrorCodes(grpc.StatusCode.CANCELLED, 499, "cancelled_error"),
    InternalError: ErrorCodes(grpc.StatusCode.INTERNAL, 500, "internal_error"),
}


def codes_of(error: BaseException) -> ErrorCodes:
    """Codes for an error; anything that is not a domain error counts as internal."""
    for kind in type(error).__mro__:
        if kind in _CODES:
            return _CODES[kind]
    return _CODES[InternalError]


def error_of(code: int, message: str, field: str = "") -> SlipstreamError:
    """The domain error for a google.rpc.Code received from a peer."""
    for kind, codes in reversed(_CODES.items()):
        number: int = codes.status.value[0]
        if number == code and kind is not PayloadTooLargeError:
            return kind(message, field=field)
    return InternalError(message, field=field)
