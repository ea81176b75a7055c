"""One line a request of either API, when it is over. It has figures and names, and no word of a prompt or an answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.core import request_id
from gateway.generation.generation import Generation
from slipstream.generation_types import FinishReason, Usage
from slipstream.request_context import NO_CONTEXT, RequestContext
from slipstream.rpc.errors import CancelledError, SlipstreamError, codes_of
from slipstream.rpc.logs import with_fields
from slipstream.tracing.tracer import NO_SPAN, Span

_log = logging.getLogger(__name__)

QUIET_PATHS: Final = frozenset({"/health", "/ready", "/metrics", "/services"})
"""What supervisors, and the page, ask every few seconds is told at level debug alone, unless it is refused."""

_PAGE: Final = "/page/"
"""Files of the page, told so too."""

_MOST_CHARACTERS: Final = 200
"""Of a path, a field or an id as the caller wrote it."""

_DIGITS: Final = 6
"""Of times in seconds, and of ratios."""

_NOT_READY: Final = "503"
_EXTENSION: Final = "slipstream.access"
_NONE: Final = "-"


@dataclass(slots=True)
class Access:
    """What is known of a request so far; times are time.monotonic() in seconds.

    `status` is HTTP's number or the name of gRPC's code, as the caller was told it or would have been.
    """

    call: str
    peer: str
    level: int = logging.INFO
    status: str = _NONE
    context: RequestContext = NO_CONTEXT
    answer_id: str = ""
    """What the answer calls itself, if it does."""
    model: str = ""
    generation: Generation | None = None
    stream: bool = False
    """Whether the answer comes in parts."""
    server: tuple[str, int | None] | None = None
    """Where the request came in, if that is known."""
    operation: str = ""
    """What the request's span is called; see slipstream.tracing.names."""
    span: Span = NO_SPAN
    error: BaseException | None = None
    begun: float = field(default_factory=time.monotonic)

    def generates(self, generation: Generation, model: str, answer_id: str = "") -> None:
        """The request has been understood, and is about to run. `answer_id`: what the answer carries, if anything."""
        self.generation, self.model, self.answer_id = generation, model, answer_id

    def fails(self, error: BaseException) -> None:
        """The caller is told of `error`, whatever the status said before."""
        self.error = error

    @property
    def answered(self) -> bool:
        """Whether an answer has begun."""
        return self.status != _NONE

    @property
    def refused(self) -> bool:
        """Whether the caller got an error. 503 without one is an answer, as probes of readiness get it."""
        return self.error is not None or (self.status[:1] in ("4", "5") and self.status != _NOT_READY)

    @property
    def head(self) -> str:
        """The request as `peer "call" status`."""
        return f'{self.peer} "{self.call}" {self.status}'

    def fields(self) -> dict[str, Any]:
        """Figures and names of the request, None where there are none; times in seconds."""
        generation = self.generation
        return {
            "id": _shown(self.answer_id) or None,
            **({} if generation is None else {"model": _shown(self.model), **_figures(generation, self.error)}),
            **({} if self.error is None else _reason(self.error)),
            "seconds": round(time.monotonic() - self.begun, _DIGITS),
            "request_id": self.context.request_id or None,
            "trace_id": self.span.trace_id or None,
        }


class AccessLog:
    """Writes the lines, unless it is told not to. `on_end` is told of every request that is over."""

    __slots__ = ("_enabled", "_on_end")

    def __init__(self, *, enabled: bool, on_end: Callable[[Access], None] = lambda access: None) -> None:
        self._enabled = enabled
        self._on_end = on_end

    def end(self, access: Access) -> None:
        """The request is over."""
        self._on_end(access)
        level = logging.INFO if access.refused else access.level
        if self._enabled and _log.isEnabledFor(level):
            told = {"peer": access.peer, "call": access.call, "status": access.status}
            _log.log(level, "%s", access.head, extra=with_fields(told, **access.fields()))


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


def access_of_grpc(method: str, peer: str, context: RequestContext) -> Access:
    """A call of the public gRPC API, from a peer as gRPC names it: `ipv4:127.0.0.1:4711`."""
    return Access(f"gRPC {method}", _shown(peer.partition(":")[2] or peer), context=context)


def _of_http(scope: Scope) -> Access:
    client = scope.get("client")
    raw: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "replace")
    path: str = scope["path"]
    level = logging.DEBUG if path in QUIET_PATHS or path.startswith(_PAGE) else logging.INFO
    call = f"{scope['method']} {_shown(raw.decode('latin-1'))}"
    peer = "-" if client is None else f"{client[0]}:{client[1]}"
    context, server = request_id.context_of(scope), scope.get("server")
    return Access(call, peer, level, context=context, server=None if server is None else (server[0], server[1]))


def _figures(generation: Generation, error: BaseException | None) -> dict[str, Any]:
    """Tokens, times and ends of all choices together; names are those of the API's usage."""
    usage: Usage = generation.usage
    unfinished = FinishReason.CANCELLED if error is None or isinstance(error, CancelledError) else FinishReason.ERROR
    ends = dict.fromkeys((choice.finish_reason or unfinished).value for choice in generation.choices)
    return {
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens or None,
        "completion_tokens": usage.completion_tokens,
        "ttft": round(generation.first_token_seconds, _DIGITS) or None,
        "acceptance_length": round(usage.completion_tokens / usage.verify_steps, _DIGITS)
        if usage.verify_steps
        else None,
        "drafted_tokens": usage.drafted_tokens or None,
        "accepted_tokens": usage.accepted_tokens if usage.drafted_tokens else None,
        "choices": len(generation.choices) if len(generation.choices) > 1 else None,
        "finish_reason": ",".join(ends),
    }


def _reason(error: BaseException) -> dict[str, Any]:
    """The kind of an error and the field it names. Its message may quote the request."""
    field_name = error.field if isinstance(error, SlipstreamError) else ""
    return {"error": codes_of(error).openai_type, "param": _shown(field_name) or None}


def _shown(text: str) -> str:
    """A caller's own text as one word of a line, and no longer than a line can bear."""
    short = text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "..."
    return "".join(char if char.isprintable() and char not in ' "' else "?" for char in short)
