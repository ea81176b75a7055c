"""A verify service without a model: a real gRPC server that answers with scripted tokens, or as badly as told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import grpc

from slipstream.rpc.errors import (
    InvalidArgumentError,
    ResourceExhaustedError,
    SlipstreamError,
    UnavailableError,
    codes_of,
)
from slipstream.rpc.server import GrpcServer
from slipstream.rpc.tls import Tls
from slipstream.rpc.unix_socket import UnixSocket
from slipstream.v1 import sampling_pb2, verify_pb2, verify_pb2_grpc

EOS_ID = 2
_PORT_SECONDS = 30.0


@dataclass(slots=True)
class Script:
    """How the next requests are answered. Tokens come from `tokens`, or else the prompt is said again and again."""

    tokens: Sequence[int] = ()
    tokens_per_step: int = 1
    step_seconds: float = 0.0
    first_seconds: float = 0.0  # before the first output
    error: SlipstreamError | None = None  # refuses the request
    resumed_errors: list[SlipstreamError] = field(default_factory=list)  # refuse requests with output, each once
    breaks: list[int] = field(default_factory=list)  # break the whole session before these output tokens, each once
    breaks_in_prompt: list[int] = field(default_factory=list)  # the same before these parts of the prompt's logprobs
    scores_per_output: int = 2
    error_after: int | None = None  # breaks the whole session after so many steps
    stall_after: int | None = None  # says nothing more after so many steps
    poison: int | None = None  # a prompt that begins with this token breaks the session as it arrives
    successor: str = ""  # once asked for its facts, it ends with all sessions, and another model takes its address


@dataclass(slots=True)
class Seen:
    """What the gateway asked for."""

    submits: list[verify_pb2.Submit] = field(default_factory=list)
    cancels: list[int] = field(default_factory=list)


class _Servicer(verify_pb2_grpc.VerifyServiceServicer):
    def __init__(self, owner: FakeVerify) -> None:
        self._owner = owner
        self._outboxes: list[asyncio.Queue[verify_pb2.RequestOutput | None]] = []

    async def GetState(self, request: Any, context: Any) -> verify_pb2.GetStateResponse:
        return verify_pb2.GetStateResponse()

    async def GetInfo(self, request: Any, context: Any) -> verify_pb2.GetInfoResponse:
        owner = self._owner
        info = self._info(owner)
        if owner.script.successor:
            owner.fingerprint, owner.script.successor = owner.script.successor, ""
            for outbox in self._outboxes:
                outbox.put_nowait(None)
        return info

    @staticmethod
    def _info(owner: FakeVerify) -> verify_pb2.GetInfoResponse:
        return verify_pb2.GetInfoResponse(
            model_name=owner.model_name,
            model_fingerprint=owner.fingerprint,
            vocab_size=owner.vocab_size,
            max_context=owner.max_context,
            eos_token_ids=[EOS_ID],
            max_nodes=64,
            version=owner.version,
            device="cpu",
            mode="exact",
            max_running=1,
            max_queued=owner.max_requests - 1,
            proposers=[
                verify_pb2.ProposerStatus(name="ngram", configured=True, attached=True),
                *(verify_pb2.ProposerStatus(name=name, configured=True) for name in owner.missing),
                *(
                    verify_pb2.ProposerStatus(name=name, configured=True, attached=True, preparing=True)
                    for name in owner.preparing
                ),
            ],
            default_proposer="ngram",
            serving_seconds=owner.serving_seconds,
            refusals=[
                verify_pb2.ProposerRefusal(proposer=name, reason=reason)
                for name, reason in owner.missing.items()
                if reason
            ],
        )

    async def Session(self, requests: Any, context: Any) -> AsyncIterator[verify_pb2.SessionResponse]:
        outbox: asyncio.Queue[verify_pb2.RequestOutput | None] = asyncio.Queue()
        self._outboxes.append(outbox)
        tasks: dict[int, asyncio.Task[None]] = {}
        await context.send_initial_metadata(())

        async def read() -> None:
            async for message in requests:
                if message.HasField("cancel"):
                    self._owner.seen.cancels.append(message.cancel.request_id)
                    if task := tasks.pop(message.cancel.request_id, None):
                        task.cancel()
                else:
                    self._owner.seen.submits.append(message.submit)
                    if message.submit.prompt_token_ids[0] == self._owner.script.poison:
                        outbox.put_nowait(None)
                        return
                    answer = self._owner.answer(message.submit, outbox)
                    tasks[message.submit.request_id] = asyncio.create_task(answer)

        reader = asyncio.create_task(read())
        try:
            while (output := await outbox.get()) is not None:
                yield verify_pb2.SessionResponse(outputs=[output])
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the script breaks the session")
        finally:
            self._outboxes.remove(outbox)
            for task in (reader, *tasks.values()):
                task.cancel()


class FakeVerify:
    """Runs on a thread with a loop of its own. `script` may be changed between requests; `seen` records them."""

    def __init__(
        self,
        *,
        vocab_size: int = 512,
        max_context: int = 512,
        model_name: str = "tiny",
        fingerprint: str = "f" * 64,
        max_requests: int = 320,
        tls: Tls | None = None,
        unix_socket: UnixSocket | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.max_context = max_context
        self.model_name = model_name
        self.fingerprint = fingerprint
        self.max_requests = max_requests
        self.version = "1"
        self.missing: dict[str, str] = {}  # proposers that are not attached, and why, if a draft service said so
        self.preparing: tuple[str, ...] = ()  # proposers that are attached, with work ahead to be done
        self.serving_seconds = 0.0
        self.script = Script()
        self.seen = Seen()
        self.port = 0
        self._tls = tls
        self._unix_socket = unix_socket
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake verify", daemon=True)
        self._server: GrpcServer | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._unix_socket.address if self._unix_socket else f"127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        """Whether it listens."""
        return self._server is not None

    def __enter__(self) -> Self:
        self._thread.start()
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def start(self) -> None:
        """Listen, on the same port as before if there was one."""

        async def start() -> int:
            self._server = GrpcServer(
                host="127.0.0.1",
                port=self.port,
                services=["slipstream.v1.VerifyService"],
                register=lambda server: verify_pb2_grpc.add_VerifyServiceServicer_to_server(_Servicer(self), server),
                credentials=self._tls.server_credentials() if self._tls else None,
                unix_socket=self._unix_socket,
            )
            limit = time.monotonic() + _PORT_SECONDS
            while True:
                try:
                    return await self._server.start()
                except UnavailableError:
                    # Whoever dials a port on which nobody listens may be given it for its own end.
                    if time.monotonic() > limit:
                        raise
                    await asyncio.sleep(0.05)

        self.port = self._run(start)

    def stop(self) -> None:
        """Go away at once, breaking all sessions."""

        async def stop() -> None:
            server, self._server = self._server, None
            if server is not None:
                await server.drain(0)

        self._run(stop)

    def reset(self, **script: Any) -> None:
        """A new script and an empty record."""
        self.script, self.seen = Script(**script), Seen()

    def wait_for(self, condition: Callable[[Seen], bool], seconds: float = 60.0) -> None:
        """Wait until the record satisfies `condition`."""
        end = time.monotonic() + seconds
        while not condition(self.seen):
            assert time.monotonic() < end, f"never happened: {self.seen}"
            time.sleep(0.01)

    async def answer(self, submit: verify_pb2.Submit, outbox: asyncio.Queue[verify_pb2.RequestOutput | None]) -> None:
        """Send one request's outputs."""
        script = self.script
        if script.error is not None:
            outbox.put_nowait(_refusal(submit.request_id, script.error))
            return
        if submit.output_token_ids and script.resumed_errors:
            outbox.put_nowait(_refusal(submit.request_id, script.resumed_errors.pop(0)))
            return
        if submit.speculation.proposer == "busy":
            outbox.put_nowait(_refusal(submit.request_id, ResourceExhaustedError("the queue is full")))
            return
        if submit.speculation.proposer not in ("", "ngram"):
            reason = (
                f"speculation.proposer is {submit.speculation.proposer!r}, which is neither configured nor attached"
            )
            outbox.put_nowait(_refusal(submit.request_id, InvalidArgumentError(reason, field="speculation.proposer")))
            return
        await asyncio.sleep(script.first_seconds)
        if submit.sampling.HasField("prompt_logprobs"):
            for number, output in enumerate(_prompt_outputs(submit, script.scores_per_output)):
                if number in script.breaks_in_prompt:
                    script.breaks_in_prompt.remove(number)
                    outbox.put_nowait(None)
                    return
                outbox.put_nowait(output)
        tokens = self._tokens(submit)
        if submit.sampling.HasField("max_tokens") and not tokens:
            output = verify_pb2.RequestOutput(request_id=submit.request_id, seed=submit.sampling.seed)
            output.finish_reason = sampling_pb2.FINISH_REASON_LENGTH
            output.usage.prompt_tokens = len(submit.prompt_token_ids)
            outbox.put_nowait(output)
        for step, begin in enumerate(range(len(submit.output_token_ids), len(tokens), script.tokens_per_step)):
            if script.stall_after == step:
                return
            if script.error_after == step or self._breaks_at(script, begin):
                outbox.put_nowait(None)
                return
            output = _output(submit, tokens, begin, min(begin + script.tokens_per_step, len(tokens)))
            output.seed = submit.sampling.seed
            outbox.put_nowait(output)
            await asyncio.sleep(script.step_seconds)

    def _breaks_at(self, script: Script, index: int) -> bool:
        if index in script.breaks:
            script.breaks.remove(index)
            return True
        return False

    def _tokens(self, submit: verify_pb2.Submit) -> list[int]:
        room = self.max_context - len(submit.prompt_token_ids)
        count = min(submit.sampling.max_tokens, room) if submit.sampling.HasField("max_tokens") else room
        source = list(self.script.tokens or submit.prompt_token_ids)
        tokens = (source * (count // len(source) + 1))[:count]
        ending = set(submit.sampling.stop_token_ids) | (set() if submit.sampling.ignore_eos else {EOS_ID})
        first = next((index for index, token in enumerate(tokens) if token in ending), count)
        return tokens[: first + 1]

    def _run(self, function: Callable[[], Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(function(), self._loop).result(timeout=60)


def _refusal(request_id: int, error: SlipstreamError) -> verify_pb2.RequestOutput:
    code = codes_of(error).status.value[0]
    return verify_pb2.RequestOutput(
        request_id=request_id,
        finish_reason=sampling_pb2.FINISH_REASON_ERROR,
        error=sampling_pb2.Error(code=code, message=error.message, field=error.field, retry_after=error.retry_after),
    )


def _prompt_outputs(submit: verify_pb2.Submit, size: int) -> Iterator[verify_pb2.RequestOutput]:
    """Logprobs of a prompt, each known by its place: -place / 4, rank 1 + place % 3, likely ids from 10 on."""
    top = submit.sampling.prompt_logprobs
    for first in range(1, len(submit.prompt_token_ids), size):
        places = range(first, min(first + size, len(submit.prompt_token_ids)))
        output = verify_pb2.RequestOutput(request_id=submit.request_id)
        scores = output.prompt_logprobs
        scores.first_position, scores.top = first, top
        scores.logprobs.extend(-place / 4 for place in places)
        scores.ranks.extend(1 + place % 3 for place in places)
        scores.top_ids.extend(10 + rank for _ in places for rank in range(top))
        scores.top_logprobs.extend(-place / 8 - rank for place in places for rank in range(top))
        yield output


def _output(submit: verify_pb2.Submit, tokens: list[int], begin: int, end: int) -> verify_pb2.RequestOutput:
    output = verify_pb2.RequestOutput(request_id=submit.request_id, token_ids=tokens[begin:end])
    output.step.drafted, output.step.accepted, output.step.proposer = 4, end - begin - 1, "ngram"
    output.step.sources.add(proposer="member", drafted=4, accepted=end - begin - 1)
    if submit.speculation.trace:
        drafted = [*tokens[begin : begin + 4], 0, 0, 0, 0][:4]
        output.step.trace.MergeFrom(
            sampling_pb2.StepTrace(
                position=begin, token_ids=drafted, parents=range(-1, 3), accepted=range(end - begin - 1), pass_rows=5
            )
        )
    if submit.sampling.HasField("logprobs"):
        for token in tokens[begin:end]:
            chosen = sampling_pb2.TokenLogprob(token_id=token, logprob=-0.5, rank=1)
            top = [
                sampling_pb2.TokenLogprob(token_id=10 + rank, logprob=-1.0 - rank, rank=1 + rank)
                for rank in range(submit.sampling.logprobs)
            ]
            output.logprobs.append(sampling_pb2.PositionLogprobs(chosen=chosen, top=top))
    first, last = begin == len(submit.output_token_ids), end == len(tokens)
    if first or last:
        output.usage.prompt_tokens = len(submit.prompt_token_ids)
        output.usage.completion_tokens = end
        output.usage.cached_tokens = 3 + len(submit.output_token_ids)
    if last:
        ended = tokens[-1] in {*submit.sampling.stop_token_ids, *([] if submit.sampling.ignore_eos else [EOS_ID])}
        output.finish_reason = sampling_pb2.FINISH_REASON_STOP if ended else sampling_pb2.FINISH_REASON_LENGTH
        output.timings.queued, output.timings.first_token, output.timings.total = 0.05, 0.125, 0.25
    return output
