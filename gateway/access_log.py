"""One line a request of either API, when it is over. It has figures and names, and no word of a prompt or an answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import request_id
from gateway.generation import Generation
from slipstream.generation_types import FinishReason, Usage
from slipstream.rpc.errors import CancelledError, SlipstreamError, codes_of

_log = logging.getLogger(__name__)

QUIET_PATHS: Final = frozenset({"/health", "/ready", "/metrics"})
"""What supervisors ask every few seconds is told at level debug alone."""

REQUEST_ID_KEY: Final = "x-request-id"
"""Metadata by which a caller of the gRPC API names its request."""

_MOST_CHARACTERS: Final = 200
"""Of a path, a field or an id as the caller wrote it."""

_EXTENSION: Final = "slipstream.access"


@dataclass(slots=True)
class Access:
    """What is known of a request so far; times are time.monotonic() in seconds.

    `status` is HTTP's number or the name of gRPC's code, as the caller was told it or would have been.
    """

    call: str
    peer: str
    level: int = logging.INFO
    status: str = "-"
    answer_id: str = ""
    """The answer's, or the caller's own of a gRPC call."""
    request_id: str = ""
    """What the answer's X-Request-Id says."""
    model: str = ""
    generation: Generation | None = None
    error: BaseException | None = None
    begun: float = field(default_factory=time.monotonic)

    def generates(self, generation: Generation, model: str, answer_id: str = "") -> None:
        """The request has been understood, and is about to run. `answer_id`: what the answer carries, if anything."""
        self.generation, self.model = generation, model
        self.answer_id = answer_id or self.answer_id

    def fails(self, error: BaseException) -> None:
        """The caller is told of `error`, whatever the status said before."""
        self.error = error

    def line(self) -> str:
        """The request as `peer "call" status name=value ...`."""
        parts = [f'{self.peer} "{self.call}" {self.status}']
        if self.answer_id:
            parts.append(f"id={_shown(self.answer_id)}")
        if self.generation is not None:
            parts.append(f"model={_shown(self.model)}")
            parts += _figures(self.generation, self.error)
        if self.error is not None:
            parts += _reason(self.error)
        parts.append(f"seconds={time.monotonic() - self.begun:.3f}")
        if self.request_id:
            parts.append(f"request_id={self.request_id}")
        return " ".join(parts)


class AccessLog:
    """Writes the lines, unless it is told not to."""

    __slots__ = ("_enabled",)

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled

    def end(self, access: Access) -> None:
        """The request is over."""
        if self._enabled and _log.isEnabledFor(access.level):
            _log.log(access.level, "%s", access.line())


class AccessLogged:
    """ASGI middleware that logs every request to the application at its end; `access_of` finds what it has noted."""

    def __init__(self, app: ASGIApp, log: AccessLog) -> None:
        self._app = app
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        access = _of_http(scope)
        scope.setdefault("extensions", {})[_EXTENSION] = access

        def noted(message: MutableMapping[str, Any]) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                access.status = str(message["status"])
            return send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            if isinstance(access.error, CancelledError):
                access.status = str(codes_of(access.error).http)
            self._log.end(access)


def access_of(scope: Scope) -> Access:
    """What is noted of the request of this scope; one that is noted nowhere where no middleware is."""
    noted: Access | None = scope.get("extensions", {}).get(_EXTENSION)
    return _of_http(scope) if noted is None else noted


def access_of_grpc(method: str, peer: str, call_id: str) -> Access:
    """A call of the public gRPC API, from a peer as gRPC names it: `ipv4:127.0.0.1:4711`."""
    return Access(f"gRPC {method}", _shown(peer.partition(":")[2] or peer), answer_id=call_id)


def _of_http(scope: Scope) -> Access:
    client = scope.get("client")
    raw: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "replace")
    level = logging.DEBUG if scope["path"] in QUIET_PATHS else logging.INFO
    call = f"{scope['method']} {_shown(raw.decode('latin-1'))}"
    peer = "-" if client is None else f"{client[0]}:{client[1]}"
    return Access(call, peer, level, request_id=request_id.of(scope))


def _figures(generation: Generation, error: BaseException | None) -> list[str]:
    """Tokens, times and ends of all choices together; names are those of the API's usage."""
    usage: Usage = generation.usage
    parts = [f"prompt_tokens={usage.prompt_tokens}"]
    if usage.cached_tokens:
        parts.append(f"cached_tokens={usage.cached_tokens}")
    parts.append(f"completion_tokens={usage.completion_tokens}")
    if generation.first_token_seconds:
        parts.append(f"ttft={generation.first_token_seconds:.3f}")
    if usage.verify_steps:
        parts.append(f"acceptance_length={usage.completion_tokens / usage.verify_steps:.2f}")
    if len(generation.choices) > 1:
        parts.append(f"choices={len(generation.choices)}")
    unfinished = FinishReason.CANCELLED if error is None or isinstance(error, CancelledError) else FinishReason.ERROR
    ends = dict.fromkeys((choice.finish_reason or unfinished).value for choice in generation.choices)
    return [*parts, f"finish_reason={','.join(ends)}"]


def _reason(error: BaseException) -> list[str]:
    """The kind of an error and the field it names. Its message may quote the request."""
    parts = [f"error={codes_of(error).openai_type}"]
    if isinstance(error, SlipstreamError) and error.field:
        parts.append(f"param={_shown(error.field)}")
    return parts


def _shown(text: str) -> str:
    """A caller's own text as one word of a line, and no longer than a line can bear."""
    short = text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "..."
    return "".join(char if char.isprintable() and char not in ' "' else "?" for char in short)
