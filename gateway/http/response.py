"""Answers of the OpenAI API that come out of a generation, streamed or in one piece."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.access.access_log import access_of
from gateway.core.request import Delta
from gateway.generation.generation import Generation
from gateway.http.errors import error_body, error_response
from gateway.http.peer_probe import FILLER
from gateway.metrics import Metrics
from gateway.openai.output import Collected, OutputWriter
from slipstream.rpc.errors import CancelledError, SlipstreamError, codes_of

_EVENT_STREAM: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

_JSON: Final = [(b"content-type", b"application/json")]
_SEND_BYTES: Final = 256 * 1024
"""Of an answer, from which on it is sent in parts."""

_COMMENT: Final = b":\n\n"
"""A comment of an event stream, which clients pass over."""


class GenerationResponse(Response):
    """Runs a generation and writes its answer; a client that goes away cancels it.

    The status is sent with the first output, so that whatever the verify service refuses has a status of its own.
    """

    def __init__(self, generation: Generation, writer: OutputWriter, metrics: Metrics) -> None:
        super().__init__()
        self._generation = generation
        self._writer = writer
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        status, access = 200, access_of(scope)
        access.generates(self._generation, self._writer.model, self._writer.request_id)
        try:
            with self._generation, _cancelled_on_disconnect(receive, self._generation):
                first = await self._generation.next()
                await self._answer(first, scope, receive, send)
        except SlipstreamError as error:
            status = codes_of(error).http
            access.fails(error)
            if not isinstance(error, CancelledError):
                await error_response(error)(scope, receive, send)
        finally:
            self._metrics.answered("http", str(status))

    async def _answer(self, first: list[Delta], scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError


class WholeResponse(GenerationResponse):
    """The answer as one JSON body."""

    async def _answer(self, first: list[Delta], scope: Scope, receive: Receive, send: Send) -> None:
        choices = [Collected() for _ in self._generation.choices]
        deltas = first
        while deltas:
            for delta in deltas:
                choices[delta.index].add(delta)
            deltas = await self._generation.next()
        await _send_json(self._writer.body(choices), scope, receive, send)


class EventStreamResponse(GenerationResponse):
    """The answer as server-sent events. An error in mid-stream is an event of its own, after which no [DONE] comes."""

    async def _answer(self, first: list[Delta], scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("extensions", {})[FILLER] = _COMMENT
        await send({"type": "http.response.start", "status": 200, "headers": _EVENT_STREAM})
        generation, chunk = self._generation, self._writer.chunk
        body, deltas = self._writer.opening(), first
        try:
            while deltas:
                for delta in deltas:
                    body += chunk(delta)
                    if delta.prompt_logprobs is not None:  # which may be many, and have the loop all the time
                        await asyncio.sleep(0)
                if body:
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                    body = b""
                deltas = await generation.next()
            body = self._writer.closing()
        except SlipstreamError as error:
            if isinstance(error, CancelledError):
                raise
            access_of(scope).fails(error)
            body = b"data: " + orjson.dumps(error_body(error)) + b"\n\n"
        await send({"type": "http.response.body", "body": body, "more_body": False})


async def _send_json(pieces: Iterator[bytes], scope: Scope, receive: Receive, send: Send) -> None:
    """Send a document, whole if it is small, else as its pieces are made: others are served between any two."""
    body, begun = bytearray(), False
    for piece in pieces:
        if begun or body:
            await asyncio.sleep(0)
        body += piece
        if len(body) >= _SEND_BYTES:
            if not begun:
                await send({"type": "http.response.start", "status": 200, "headers": _JSON})
            await send({"type": "http.response.body", "body": bytes(body), "more_body": True})
            body, begun = bytearray(), True
    if begun:
        await send({"type": "http.response.body", "body": bytes(body), "more_body": False})
    else:
        await Response(bytes(body), media_type="application/json")(scope, receive, send)


@contextmanager
def _cancelled_on_disconnect(receive: Receive, generation: Generation) -> Iterator[None]:
    """Abandon the generation when the client goes away."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        generation.abandon(CancelledError("the client went away"))

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        task.cancel()
