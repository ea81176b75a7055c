"""VerifyService: what gateways call. Bytes come in and go out; codec gives them meaning."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field, replace
from typing import Any

import grpc

from slipstream.rpc.errors import SlipstreamError, UnavailableError
from slipstream.rpc.logs import with_fields
from slipstream.rpc.server import abort
from slipstream.tracing.tracer import NullTracer, Tracer
from verify_service.core.adapters import AdapterList
from verify_service.core.request import GenerationRequest, RequestKey, StepOutput
from verify_service.draft_link.draft_link import DraftLink
from verify_service.engine.command_queue import CancelRequest
from verify_service.engine.verify_loop import VerifyLoop
from verify_service.kv_cache.cache_events import CacheEvents
from verify_service.server.adapter_loader import AdapterLoader
from verify_service.server.cache_watch import CachedPages, WatchCache
from verify_service.server.codec import (
    decode_load,
    decode_session_request,
    decode_unload,
    encode_info,
    encode_loaded,
    encode_outputs,
    encode_state,
    encode_unloaded,
)
from verify_service.server.metrics.verify_metrics import VerifyMetrics
from verify_service.server.request_traces import RequestTraces
from verify_service.server.server_info import ServerInfo
from verify_service.server.session import Session
from verify_service.server.trace_privacy import without_other_texts

_log = logging.getLogger(__name__)

SERVICE = "slipstream.v1.VerifyService"
FLUSH_SECONDS = 2.0
"""How long a session's stream may take to carry the last outputs when the service stops."""
TRACES_SECONDS = 2.0
"""How long sending the last spans may take."""
_UNTRACED = NullTracer()

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Backend:
    """What stands behind the service once the model is ready."""

    facts: ServerInfo
    loop: VerifyLoop
    link: DraftLink
    adapters: AdapterLoader
    since: float = field(default_factory=time.monotonic)
    """When it was ready."""


class VerifyServicer:
    """Belongs to the event loop it is made in, except for `sink` and what begins with `tell`.

    Answers UNAVAILABLE until `backend` is set.
    """

    def __init__(self, metrics: VerifyMetrics, tracer: Tracer = _UNTRACED) -> None:
        self.backend: Backend | None = None
        self._metrics = metrics
        self._traces = RequestTraces(tracer)
        self._events = asyncio.get_running_loop()
        self._sessions: dict[int, Session] = {}
        self._cached = CachedPages()
        self._session_ids = itertools.count(1)
        self._draining = False

    def register(self, server: grpc.aio.Server) -> None:
        """Add the service to a server. Messages are handed over as bytes."""
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "GetInfo": grpc.unary_unary_rpc_method_handler(self.get_info),
            "GetState": grpc.unary_unary_rpc_method_handler(self.get_state),
            "Session": grpc.stream_stream_rpc_method_handler(self.session),
            "LoadAdapter": grpc.unary_unary_rpc_method_handler(self.load_adapter),
            "UnloadAdapter": grpc.unary_unary_rpc_method_handler(self.unload_adapter),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    def sink(self, outputs: list[StepOutput]) -> None:
        """Take one step's outputs on the verify loop's thread."""
        self._events.call_soon_threadsafe(self._deliver, outputs)

    def tell_started(self, keys: list[RequestKey]) -> None:
        """Take requests that the next step begins on the verify loop's thread."""
        self._events.call_soon_threadsafe(self._start, keys)

    def tell_cached(self, events: CacheEvents) -> None:
        """Take what a step has changed in the prefix cache on the verify loop's thread."""
        self._events.call_soon_threadsafe(self._note_cached, events)

    def tell_adapters(self, adapters: AdapterList) -> None:
        """Take what requests may name from now on, on the verify loop's thread."""
        self._events.call_soon_threadsafe(self._note_adapters, adapters)

    async def get_info(self, _request: bytes, context: Context) -> bytes:
        """Facts and limits; UNAVAILABLE while loading or draining."""
        try:
            backend = self._ready()
            if self._draining:
                raise UnavailableError("the verify service drains")
            link = backend.link
            seconds = time.monotonic() - backend.since
            proposers = link.proposers()
            preparing = [each.name for each in proposers if backend.loop.prepares(each.boundaries)]
            loaded = backend.adapters.loaded
            return encode_info(backend.facts, proposers, link.default(), link.refusals(), seconds, preparing, loaded)
        except SlipstreamError as error:
            await abort(context, error)

    async def get_state(self, _request: bytes, context: Context) -> bytes:
        """Counters of the moment."""
        try:
            backend = self._ready()
            return encode_state(backend.loop.state(), backend.link.state())
        except SlipstreamError as error:
            await abort(context, error)

    async def load_adapter(self, request: bytes, context: Context) -> bytes:
        """Read an adapter beside the steps, and serve it."""
        try:
            backend = self._ready()
            adapter = await asyncio.to_thread(backend.adapters.load, *decode_load(request))
            return encode_loaded(adapter, backend.adapters.loaded)
        except SlipstreamError as error:
            await abort(context, error)

    async def unload_adapter(self, request: bytes, context: Context) -> bytes:
        """Let go of an adapter; the call may be given up, the adapter goes all the same."""
        try:
            backend = self._ready()
            await asyncio.shield(asyncio.wrap_future(backend.adapters.unload(decode_unload(request))))
            return encode_unloaded(backend.adapters.loaded)
        except SlipstreamError as error:
            await abort(context, error)

    async def session(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Carry requests up and outputs down; whatever ends the stream cancels the requests that still run."""
        try:
            backend = self._ready()
        except SlipstreamError as error:
            await abort(context, error)
        session = Session(next(self._session_ids))
        self._sessions[session.session_id] = session
        try:
            await context.send_initial_metadata(())
            await self._carry(backend, session, requests, context)
        except SlipstreamError as error:
            await abort(context, error)
        finally:
            del self._sessions[session.session_id]
            if session.cache is not None and not self._has_watchers():
                backend.loop.tell_cache(wanted=False)
                self._cached.forget()
            if session.active:
                backend.loop.cancel_session(session.session_id)
                self._traces.drop(session.session_id)

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, let the others finish for `seconds`, then end every session and the engine."""
        self._draining = True
        if self.backend is None:
            return
        loop, link = self.backend.loop, self.backend.link
        link.refuse_attachments()
        loop.drain()
        if not await asyncio.to_thread(loop.wait_idle, seconds):
            _log.warning("requests still run after %g s and are ended", seconds)
        await asyncio.to_thread(loop.stop)
        # The engine's last outputs were scheduled before stop() returned, hence before this line runs on.
        await asyncio.sleep(0)
        for session in self._sessions.values():
            session.end(UnavailableError("the verify service stops"))
        flushed = [asyncio.ensure_future(session.sent.wait()) for session in self._sessions.values()]
        if flushed:
            await asyncio.wait(flushed, timeout=FLUSH_SECONDS)
        for future in flushed:
            future.cancel()
        link.close()
        await asyncio.to_thread(self._traces.close, TRACES_SECONDS)

    async def _carry(
        self, backend: Backend, session: Session, requests: AsyncIterator[bytes], context: Context
    ) -> None:
        """Run both directions until the client has half-closed and all its requests are answered."""

        async def receive() -> None:
            async for data in requests:
                request = decode_session_request(data, session.session_id, time.monotonic())
                if isinstance(request, CancelRequest):
                    backend.loop.cancel(request.key)
                elif isinstance(request, WatchCache):
                    self._watch_cache(backend, session)
                else:
                    session.begin(request.key.request_id)
                    if _log.isEnabledFor(logging.DEBUG):
                        _tell_submitted(request)
                    self._traces.begin(request)
                    backend.loop.submit(request)
            session.half_close()

        async def send() -> None:
            while not (taken := await session.take()).is_end:
                await context.write(encode_outputs(*taken))

        tasks = (asyncio.create_task(receive()), asyncio.create_task(send()))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, SlipstreamError, grpc.aio.BaseError):
                    await task

    def _start(self, keys: list[RequestKey]) -> None:
        """Sort requests that begin by session."""
        self._traces.start(keys)
        for key in keys:
            session = self._sessions.get(key.session_id)
            if session is not None:
                session.start((key.request_id,))

    @property
    def sessions(self) -> Collection[Session]:
        """Those that are open."""
        return self._sessions.values()

    def _note_adapters(self, adapters: AdapterList) -> None:
        for session in self._sessions.values():
            session.tell_adapters(adapters)

    def _has_watchers(self) -> bool:
        return any(session.cache is not None for session in self.sessions)

    def _watch_cache(self, backend: Backend, session: Session) -> None:
        """Pages are hashed only while somebody wants to know."""
        if not self._has_watchers():
            backend.loop.tell_cache(wanted=True)
        session.watch_cache(self._cached)

    def _note_cached(self, events: CacheEvents) -> None:
        self._cached.apply(events)
        for session in self._sessions.values():
            session.cached(events)

    def _deliver(self, outputs: list[StepOutput]) -> None:
        """Sort one step's outputs by session; those of a session that has gone are dropped."""
        by_session: defaultdict[int, list[StepOutput]] = defaultdict(list)
        for output in outputs:
            by_session[output.key.session_id].append(output)
        for session_id, own in by_session.items():
            session = self._sessions.get(session_id)
            if session is not None:
                session.put(map(self._guarded, own))
        self._metrics.step(outputs)
        self._traces.finish(outputs)
        if _log.isEnabledFor(logging.DEBUG):
            _tell_finished(outputs)

    def _guarded(self, output: StepOutput) -> StepOutput:
        """The output as its client may have it."""
        if output.step is None or output.step.trace is None or self.backend is None:
            return output
        step = without_other_texts(output.step, self.backend.link.remembers)
        return output if step is output.step else replace(output, step=step)

    def _ready(self) -> Backend:
        if self.backend is None:
            raise UnavailableError("the model is loading")
        return self.backend


def _tell_submitted(request: GenerationRequest) -> None:
    key, count, named = request.key, len(request.prompt_token_ids), request.context.request_id or None
    told = {"session": key.session_id, "request": key.request_id, "prompt_tokens": count}
    text = "session %d request %d: submitted with %d prompt tokens"
    _log.debug(text, key.session_id, key.request_id, count, extra=with_fields(told, request_id=named))


def _tell_finished(outputs: list[StepOutput]) -> None:
    for output in outputs:
        if output.finish_reason is not None:
            key, reason, usage = output.key, output.finish_reason.value, output.usage
            told = {"session": key.session_id, "request": key.request_id, "finish_reason": reason}
            text = "session %d request %d: ended, %s, %s"
            _log.debug(text, key.session_id, key.request_id, reason, usage, extra=with_fields(told))
