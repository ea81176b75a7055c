"""One client request under way: its choices, merged into one stream of deltas."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from types import TracebackType
from typing import Final, Self

from gateway.core.request import ChoiceRequest, Delta, Sampling, StepOutput, VerifyInfo
from gateway.generation.queue_wait import QueueWait
from gateway.generation.traced_choices import TracedChoices
from gateway.metrics import Metrics
from gateway.replicas.batch_queue import BatchQueue
from gateway.replicas.resumable_stream import ResumableStream, Resumed
from gateway.replicas.verify_client import VerifyClient
from gateway.token_figures import TokenTimes
from gateway.tokens.stream import ChoiceStream
from gateway.tokens.tokenizer import Tokenizer
from slipstream.generation_types import FinishReason, Timings, Usage
from slipstream.rpc.errors import CancelledError, InternalError, ResourceExhaustedError, SlipstreamError

_CANCELS: Final = (CancelledError, asyncio.CancelledError)
"""What ends a request whose caller went away."""

_UNFINISHED: Final = (FinishReason.ERROR, FinishReason.CANCELLED)

_SAMPLING_FIELDS: Final = frozenset(entry.name for entry in fields(Sampling))


class Running:
    """The generations under way."""

    __slots__ = ("_generations", "_idle")

    def __init__(self) -> None:
        self._generations: dict[Generation, None] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def __iter__(self) -> Iterator[Generation]:
        return iter(list(self._generations))

    def add(self, generation: Generation) -> None:
        """Count it in."""
        self._generations[generation] = None
        self._idle.clear()

    def discard(self, generation: Generation) -> None:
        """Count it out."""
        self._generations.pop(generation, None)
        if not self._generations:
            self._idle.set()

    async def wait_idle(self, seconds: float) -> bool:
        """Wait until nothing runs; False if that takes longer."""
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except TimeoutError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class GenerationContext:
    """What every generation of a process uses. `max_buffered`: outputs a reader may leave unread."""

    tokenizer: Tokenizer
    client: VerifyClient
    metrics: Metrics
    running: Running
    max_buffered: int
    queue: QueueWait = field(default_factory=QueueWait)
    traced: TracedChoices = field(default_factory=lambda: TracedChoices(0))


@dataclass(frozen=True, slots=True)
class FieldNames:
    """What the caller's API calls the fields of a Submit: the prompt, and what comes before sampling parameters.

    `grammar`: the field that the grammar comes from, where the API has none of that name.
    """

    prompt: str
    sampling_prefix: str = ""
    grammar: str = ""

    def translate(self, error: SlipstreamError) -> SlipstreamError:
        """A verify service's refusal, naming the field as the caller wrote it."""
        if error.field == "prompt_token_ids":
            return type(error)(error.message, field=self.prompt)
        if error.field.partition(".")[0] == "grammar":
            field = self.grammar or self.sampling_prefix + error.field
            named = error.message.startswith(f"{error.field} ")
            message = f"{field}{error.message.removeprefix(error.field)}" if named else error.message
            return type(error)(message, field=field)
        if error.field in _SAMPLING_FIELDS:
            return type(error)(error.message, field=self.sampling_prefix + error.field)
        return error


class Generation:
    """The choices of one request. A context manager: what is unfinished when it is left is cancelled.

    A reader that leaves too many outputs unread loses the request, since a verify service cannot wait for it.
    """

    __slots__ = ("_arrived", "_backend", "_failure", "_first_token", "_names", "_streams", "_times", "_unfinished",
                 "arrival", "choices", "info", "requests", "seed", "timings")  # fmt: skip

    def __init__(
        self,
        requests: Sequence[ChoiceRequest],
        info: VerifyInfo,
        seed: int,
        backend: GenerationContext,
        names: FieldNames,
    ) -> None:
        self.requests = requests
        self.info = info
        self.seed = seed
        self.choices = [
            ChoiceStream(index, request, backend.tokenizer, info.eos_token_ids)
            for index, request in enumerate(requests)
        ]
        self._backend = backend
        self._names = names
        self._arrived: BatchQueue[tuple[int, StepOutput]] = BatchQueue()
        self._failure: SlipstreamError | None = None
        self._unfinished = len(requests)
        self.arrival = time.monotonic()
        self.timings: Timings | None = None  # of the choice that has ended last
        self._first_token = 0.0
        self._times = [TokenTimes() for _ in requests]
        self._streams = [self._stream(index, request) for index, request in enumerate(requests)]

    def __enter__(self) -> Self:
        self._backend.traced.begin(self.requests)
        try:
            self._backend.client.submit(self._streams)
        except BaseException as error:
            self._backend.traced.end(self.requests)
            if isinstance(error, ResourceExhaustedError):
                error.retry_after = self._backend.queue.seconds(0)
            raise
        self._backend.queue.begin(len(self.requests))
        self._backend.running.add(self)
        self._backend.metrics.begin(self.requests)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
        self._backend.queue.end(len(self.requests))
        self._backend.running.discard(self)
        self._backend.traced.end(self.requests)
        metrics, usages = self._backend.metrics, [choice.usage for choice in self.choices]
        metrics.end(usages, self._first_token, self._elapsed(), self.requests[0].context.request_id)
        unfinished = FinishReason.CANCELLED if error is None or isinstance(error, _CANCELS) else FinishReason.ERROR
        metrics.finish(
            (choice.finish_reason or unfinished for choice in self.choices),
            (times.per_token(usage.completion_tokens) for times, usage in zip(self._times, usages, strict=True)),
        )

    @property
    def first_token_seconds(self) -> float:
        """From the arrival to the first token of any choice; 0.0 as long as there is none."""
        return self._first_token

    @property
    def resumes(self) -> list[tuple[int, Resumed]]:
        """When choices, by their index, went on after they had lost their service."""
        return [(index, resumed) for index, stream in enumerate(self._streams) for resumed in stream.resumes]

    @property
    def replicas(self) -> list[str]:
        """Addresses of the verify services that had the choices last."""
        return list(dict.fromkeys(stream.replica.address for stream in self._streams if stream.replica is not None))

    @property
    def usage(self) -> Usage:
        """Totals over all choices; a prompt shared by several choices counts once."""
        if len(self.choices) == 1:
            return self.choices[0].usage
        usages = [choice.usage for choice in self.choices]
        first = {id(request.prompt_token_ids): index for index, request in reversed(list(enumerate(self.requests)))}
        return Usage(
            prompt_tokens=sum(usages[index].prompt_tokens for index in first.values()),
            completion_tokens=sum(usage.completion_tokens for usage in usages),
            cached_tokens=sum(usages[index].cached_tokens for index in first.values()),
            verify_steps=sum(usage.verify_steps for usage in usages),
            drafted_tokens=sum(usage.drafted_tokens for usage in usages),
            accepted_tokens=sum(usage.accepted_tokens for usage in usages),
        )

    async def next(self) -> list[Delta]:
        """What has arrived, at least one delta; empty when all choices are finished. SlipstreamError if one failed."""
        deltas: list[Delta] = []
        arrived = self._arrived
        while not deltas and self._unfinished:
            if not arrived.items:
                await arrived.arrival()  # a coroutine less a token than `take`
            for index, output in arrived.taken():
                if self._failure is not None:
                    raise self._failure
                if delta := self._feed(index, output):
                    deltas.append(delta)
        return deltas

    def cancel(self) -> None:
        """Stop all choices; nothing more will arrive."""
        for stream, choice in zip(self._streams, self.choices, strict=True):
            if not choice.finished:
                self._backend.client.cancel(stream)

    def abandon(self, error: SlipstreamError) -> None:
        """Cancel, and let the reader have `error`."""
        if self._failure is None and self._unfinished:
            self._failure = error
            self.cancel()
            self._arrived.put((0, StepOutput([])))

    def _feed(self, index: int, output: StepOutput) -> Delta | None:
        choice = self.choices[index]
        if choice.finish_reason is not None:
            return None
        if output.finish_reason in _UNFINISHED:
            error = self._names.translate(output.error or InternalError("the verify service gave up the request"))
            if isinstance(error, ResourceExhaustedError) and error.retry_after is None:
                error.retry_after = self._backend.queue.seconds(len(self.requests))
            raise error
        now = time.monotonic()
        if not self._first_token and output.token_ids:
            self._first_token = now - self.arrival
        delta = choice.feed(output)
        self._backend.metrics.tokens.count(len(delta.token_ids), output.step, self._times[index], now)
        if delta.finish_reason is not None:
            self._unfinished -= 1
            self._backend.queue.finish()
            if delta.timings is None:
                delta.timings = Timings(0.0, self._first_token, self._elapsed())
            self.timings = delta.timings
            if output.finish_reason is None:
                self._backend.client.cancel(self._streams[index])
        return delta

    def _stream(self, index: int, request: ChoiceRequest) -> ResumableStream:
        arrive, most = self._arrived.put, self._backend.max_buffered

        def deliver(output: StepOutput) -> None:
            if arrive((index, output)) > most:
                self.abandon(ResourceExhaustedError(f"the client left more than {most} outputs unread"))

        return ResumableStream(request, deliver)

    def _elapsed(self) -> float:
        return time.monotonic() - self.arrival
