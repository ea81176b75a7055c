"""One verify service: a session stream that carries all requests sent there, and is reopened when it breaks."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

import grpc

from gateway import codec
from gateway.core.request import ServedAdapter, ServiceState, VerifyInfo
from gateway.replicas.away_report import AwayReport
from gateway.replicas.batch_queue import BatchQueue
from gateway.replicas.prompt_prefix import PromptPrefix
from gateway.replicas.replica_load import ReplicaLoad
from gateway.replicas.resumable_stream import ResumableStream
from slipstream.rpc.channel import PROMPT_KEEPALIVE_OPTIONS, from_rpc_error, open_channel
from slipstream.rpc.errors import SlipstreamError, UnavailableError
from slipstream.rpc.tls import Tls
from slipstream.v1 import verify_pb2, verify_pb2_grpc

_log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS: Final = 0.1
LAST_RETRY_SECONDS: Final = 0.3

ADAPTER_SECONDS: Final = 120.0
"""How long a service may take to load a LoRA adapter."""
LEAVING_SECONDS: Final = 3600.0
"""How long the requests that use an adapter may run on once it is to go."""

SESSION: Final = "/slipstream.v1.VerifyService/Session"
"""The method, which is called with messages that have been encoded: choices share the bytes of their prompt."""


class Owner(Protocol):
    """Who uses replicas."""

    async def bring_up(self, replica: Replica, info: VerifyInfo) -> VerifyInfo:
        """A replica that tells `info` is about to be ready; what it tells once it has all that it is to have."""
        ...

    def on_ready(self, replica: Replica) -> None:
        """A replica can be sent streams."""
        ...

    def on_unloaded(self, names: Collection[str]) -> None:
        """A replica that is ready has let go of these adapters, whoever asked for that."""
        ...

    def on_lost(self, streams: list[ResumableStream], *, yielded: bool) -> None:
        """A replica's session has broken under these streams; `yielded`: it had carried a token of any stream."""
        ...

    def on_return(self, stream: ResumableStream, error: SlipstreamError) -> bool:
        """A replica has ended a stream with an error; True if that is not to be delivered."""
        ...

    def on_progress(self, stream: ResumableStream) -> None:
        """The first output of a stream since it was sent has come."""
        ...


class Outgoing(NamedTuple):
    """A message on its way to a service: a Submit of a stream, whose tokens are added as it is written, or another."""

    message: bytes
    request_id: int
    stream: ResumableStream | None


class Replica:
    """A verify service at one address, which tells its `owner` what becomes of the streams it was sent.

    A service that gives a stream back as unavailable drains; it is sent no more until it has come back. Outputs that
    a session still delivers for a cancelled stream are dropped.
    """

    __slots__ = ("_answered", "_next_id", "_outbox", "_owner", "_refusing", "_streams", "_stub", "_task", "_timeout",
                 "_tls", "_yielded", "address", "draining", "epoch", "info", "leaving", "routing")  # fmt: skip

    def __init__(self, address: str, owner: Owner, *, timeout: float, tls: Tls | None = None) -> None:
        self.address = address
        self.epoch = 0  # of the process meant, as a directory tells it; 0: any
        self.draining = False  # whether the directory says so
        self.leaving = False  # whether the directory names it no more
        self._tls = tls
        self.info: VerifyInfo | None = None  # set while the session is open
        self.routing = ReplicaLoad()
        self._refusing = False
        self._yielded = False  # whether the session has carried a token
        self._answered = False  # whether the connection stood when the last attempt ended
        self._timeout = timeout
        self._owner = owner
        self._streams: dict[int, ResumableStream] = {}
        self._outbox: BatchQueue[Outgoing] = BatchQueue()
        self._next_id = 1
        self._stub: Any = None  # generated stubs have no types
        self._task: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        """Whether requests can be sent."""
        return self.info is not None and not (self._refusing or self.draining or self.leaving)

    @property
    def load(self) -> int:
        """Choices under way."""
        return len(self._streams)

    @property
    def max_running(self) -> int:
        """Choices that are decoded together there; more wait."""
        return 0 if self.info is None else self.info.max_running

    @property
    def page_size(self) -> int:
        """Tokens of a KV page; 0 where the service tells nothing of its cache."""
        return 0 if self.info is None else self.info.page_size

    @property
    def streams(self) -> list[ResumableStream]:
        """Choices under way, in the order in which they were sent."""
        return list(self._streams.values())

    def start(self) -> None:
        """Connect, and stay connected until closed."""
        self._task = asyncio.create_task(self._stay_connected(), name=f"verify {self.address}")

    async def close(self) -> None:
        """End the session; what is under way is lost."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._lose()

    def watch_cache(self) -> None:
        """Have the service tell what it has cached, from now on, if it can; only while ready."""
        if self.info is not None and self.info.page_size and not self.info.watched:
            self.info = replace(self.info, watched=True)
            self._ask_for_snapshot()

    def submit(self, stream: ResumableStream, prompt: PromptPrefix | None = None) -> None:
        """Send a stream; only while ready. `prompt` as of `ReplicaLoad.enter`."""
        request_id = self._next_id
        message = codec.write_submit(request_id, stream.request, resumed=bool(stream.received))
        self._next_id += 1
        stream.send(self, request_id)
        self._streams[request_id] = stream
        self._outbox.put(Outgoing(message, request_id, stream))
        self.routing.enter(request_id, prompt, time.monotonic(), len(stream.received))

    def cancel(self, stream: ResumableStream) -> None:
        """Forget a stream and tell the service, unless it is finished already."""
        if self._streams.pop(stream.request_id, None) is not None:
            self.routing.leave(stream.request_id)
            self._outbox.put(Outgoing(codec.write_cancel(stream.request_id), stream.request_id, None))

    async def fetch_info(self) -> VerifyInfo:
        """The service's facts of this moment. UnavailableError and others of the table."""
        return codec.read_info(await self._ask("GetInfo", verify_pb2.GetInfoRequest()))

    async def fetch_state(self) -> ServiceState:
        """What the service does at the moment. UnavailableError and others of the table."""
        return codec.read_state(await self._ask("GetState", verify_pb2.GetStateRequest()))

    async def load_adapter(self, name: str, path: str) -> ServedAdapter:
        """Have the service load a LoRA adapter; requests may name it then. Errors as of LoadAdapter in verify.proto."""
        request = verify_pb2.LoadAdapterRequest(name=name, path=path)
        response = await self._ask("LoadAdapter", request, ADAPTER_SECONDS)
        self._learn_adapters(response.loaded)
        return codec.read_adapter(response.adapter)

    async def unload_adapter(self, name: str) -> None:
        """Send no more requests that name an adapter, and wait until the service has let go of it."""
        if self.info is not None:
            kept = tuple(each for each in self.info.adapters if each.name != name)
            self.info = replace(self.info, adapters=kept)
        response = await self._ask("UnloadAdapter", verify_pb2.UnloadAdapterRequest(name=name), LEAVING_SECONDS)
        self._learn_adapters(response.loaded)

    def _learn_adapters(self, loaded: verify_pb2.AdapterList) -> None:
        if self.info is not None:
            before, self.info = self.info.adapters, codec.with_adapters(self.info, loaded)
            if gone := {each.name for each in before} - {each.name for each in self.info.adapters}:
                self._owner.on_unloaded(gone)

    async def _ask(self, method: str, request: Any, seconds: float | None = None) -> Any:
        if self._stub is None:
            raise UnavailableError(f"no verify service answers at {self.address}")
        try:
            return await getattr(self._stub, method)(request, timeout=seconds or self._timeout)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    async def _stay_connected(self) -> None:
        delay = FIRST_RETRY_SECONDS
        report = AwayReport(self.address)
        while True:
            understood = True
            try:
                await self._hold_session()
                reason: SlipstreamError = UnavailableError("the verify service closed the session")
            except grpc.RpcError as error:
                reason = from_rpc_error(error)
            except SlipstreamError as error:
                reason = error
            except Exception as error:  # noqa: BLE001  # whatever a peer sends, its requests move and it is asked again
                _log.exception("the session with verify service %s failed", self.address)
                understood, reason = False, UnavailableError(f"the session failed: {error!r}")
            if self.info is not None and understood:
                delay = FIRST_RETRY_SECONDS
                report.lost(reason.message)
            else:
                report.failed(reason.message, answered=self._answered)
            self._lose()
            await asyncio.sleep(delay * random.uniform(0.8, 1.2))
            delay = min(delay * 1.5, LAST_RETRY_SECONDS)

    async def _hold_session(self) -> None:
        """Open a session and read it until it breaks."""
        async with open_channel(self.address, tls=self._tls, keepalive=PROMPT_KEEPALIVE_OPTIONS) as channel:
            self._stub = verify_pb2_grpc.VerifyServiceStub(channel)
            call: Any = channel.stream_stream(SESSION, response_deserializer=verify_pb2.SessionResponse.FromString)()
            self._outbox = BatchQueue()
            writer = asyncio.create_task(self._write(call, self._outbox))
            try:
                await self._await_acceptance(call)
                # Facts asked for later are those of the process behind the session: without it the session breaks.
                info = await self._owner.bring_up(self, await self.fetch_info())
                self.info, self._refusing, self._yielded = info, False, False
                _log.info("verify service %s serves %s", self.address, self.info.model_name)
                self._owner.on_ready(self)
                await self._read(call)
            finally:
                self._answered = channel.get_state() is grpc.ChannelConnectivity.READY
                call.cancel()
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)

    async def _await_acceptance(self, call: Any) -> None:
        """Return once the service has taken up a session; UnavailableError if that takes longer than a call may."""
        try:
            await asyncio.wait_for(call.wait_for_connection(), self._timeout)
        except TimeoutError:
            raise UnavailableError(f"no verify service answers at {self.address}") from None

    async def _write(self, call: Any, outbox: BatchQueue[Outgoing]) -> None:
        """Write what is put into the outbox; others are served between any two messages."""
        while True:
            for message, request_id, stream in await outbox.take():
                if stream is None:
                    await call.write(message)
                elif self._streams.get(request_id) is stream:  # else it was cancelled before the service heard of it
                    await call.write(codec.complete_submit(message, stream.request, stream.received))

    async def _read(self, call: Any) -> None:
        read = call.read
        while (response := await read()) is not grpc.aio.EOF:
            self.take(response)

    def take(self, response: verify_pb2.SessionResponse) -> None:
        """Hand each output of a message to its stream."""
        streams = self._streams
        if response.HasField("cache"):
            self._learn(response.cache)
        if response.HasField("adapters"):
            self._learn_adapters(response.adapters)
        for request_id in response.started:
            if (stream := streams.get(request_id)) is not None:
                stream.begun = True
        for message in response.outputs:
            stream = streams.get(message.request_id)
            if stream is None:
                continue
            output = codec.read_output(message)
            if output.prompt_logprobs is not None:  # which come alone, and are no progress as tokens are
                self._yielded = True
                stream.take_scores(output.prompt_logprobs)
                continue
            if output.finish_reason is not None:
                del streams[message.request_id]
                self.routing.leave(message.request_id)
                if output.error is not None and self._returns(stream, output.error):
                    continue
            cached_tokens = output.cached_tokens  # here, whatever an earlier service said
            stream.receive(output)
            if not stream.yielded:
                stream.yielded = True
                self._leave(message.request_id, cached_tokens)
                self._yielded |= bool(output.token_ids)
                self._owner.on_progress(stream)
            stream.deliver(output)

    def _learn(self, events: verify_pb2.CacheEvents) -> None:
        """Take news of the cache, and ask for all of it where some are missing."""
        if not self.routing.prefixes.take(events.sequence, events.added, events.evicted, snapshot=events.snapshot):
            self._miss_news("are missing")

    def _leave(self, request_id: int, cached_tokens: int | None) -> None:
        """A choice has its first output; see ReplicaLoad.leave."""
        if not self.routing.leave(request_id, cached_tokens):
            self._miss_news("have stopped")

    def _miss_news(self, how: str) -> None:
        self.routing.gaps += 1
        _log.warning("verify service %s: news of its prefix cache %s", self.address, how)
        self._ask_for_snapshot()

    def _ask_for_snapshot(self) -> None:
        self._outbox.put(Outgoing(codec.write_watch_cache(), 0, None))

    def _returns(self, stream: ResumableStream, error: SlipstreamError) -> bool:
        """Offer the owner a stream that the service will not go on with; whether it has another use for it."""
        self._refusing |= isinstance(error, UnavailableError)
        return self._owner.on_return(stream, error)

    def _lose(self) -> None:
        """Hand back what was under way."""
        lost = list(self._streams.values())
        self._streams.clear()
        self.routing.clear()
        self._stub, was_open, self.info = None, self.info is not None, None
        if was_open:
            self._owner.on_lost(lost, yielded=self._yielded)
