"""A verify loop in this process: requests go in, answers and the times of steps come out. No network is involved."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from slipstream.generation_types import FinishReason, PositionLogprobs, SpeculationOptions, Usage
from verify_service.core.draft_source import DraftSource, NoDrafts
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest, RequestKey, SamplingParams, StepOutput
from verify_service.engine.sink import Sink
from verify_service.engine.verify_loop import VerifyLoop
from verify_service.grammar.compiler import GrammarCompiler

__all__ = [
    "Answer",
    "Arrival",
    "EngineConfig",
    "FinishReason",
    "Job",
    "LocalLoop",
    "LoopFailedError",
    "PositionLogprobs",
    "local_loop",
]


@dataclass(frozen=True, slots=True)
class Job:
    """One request. An empty `proposer` decodes plainly; `rows` bounds its trees, the root included.

    adaptive: the operator's default proposer drafts, as much as pays. to_the_end: the model may end its text before
    `max_tokens`.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    proposer: str = ""
    rows: int | None = None
    logprobs: int | None = None
    adaptive: bool = False
    to_the_end: bool = False

    def request(self, key: RequestKey) -> GenerationRequest:
        """The request as the loop takes it."""
        sampling = SamplingParams(
            temperature=self.temperature,
            seed=self.seed,
            max_tokens=self.max_tokens,
            ignore_eos=not self.to_the_end,
            logprobs=self.logprobs,
        )
        speculation = (
            SpeculationOptions(enabled=True, proposer=self.proposer, max_nodes=self.rows)
            if self.proposer
            else SpeculationOptions(enabled=False)
        )
        if self.adaptive:
            speculation = SpeculationOptions()
        return GenerationRequest(key, self.prompt, time.monotonic(), sampling=sampling, speculation=speculation)


@dataclass(slots=True)
class Answer:
    """What one request was told. Usage is there once it has ended.

    first, last: when its first and its last tokens came, time.perf_counter() seconds.
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    usage: Usage | None = None
    finish_reason: FinishReason | None = None
    first: float = 0.0
    last: float = 0.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """A step's outputs as they reached the sink: time.perf_counter() seconds, requests and tokens among them."""

    at: float
    requests: int
    tokens: int
    drafted: int


class LoopFailedError(RuntimeError):
    """A request ended in an error, or not at all."""


class LocalLoop:
    """A running verify loop. Use within `local_loop`; one caller at a time."""

    def __init__(
        self, model: Any, config: EngineConfig, drafts: DraftSource | None, grammars: GrammarCompiler | None = None
    ) -> None:
        self.arrivals: list[Arrival] = []
        self.loop = VerifyLoop(model, config, drafts or NoDrafts(), Sink(self._take), grammars)
        self._answers: dict[RequestKey, Answer] = {}
        self._waiting: Iterator[tuple[RequestKey, Job]] = iter(())
        self._changed = threading.Condition()
        self._open = 0
        self._begun = 0
        self._keys = 0

    def run(self, jobs: Sequence[Job], concurrency: int, *, timeout: float = 600.0) -> list[Answer]:
        """Answers in the order of `jobs`; `concurrency` requests are in flight until none waits."""
        keys = self._announce(jobs)
        self._waiting = iter(zip(keys, jobs, strict=True))
        for _ in range(min(concurrency, len(jobs))):
            self._submit_next()
        self._wait(lambda: self._open == 0, timeout)
        answers = [self._answers.pop(key) for key in keys]
        for answer in answers:
            if answer.finish_reason not in (FinishReason.LENGTH, FinishReason.STOP):
                raise LoopFailedError(f"a request ended with {answer.finish_reason}")
        return answers

    @contextmanager
    def decoding(self, jobs: Sequence[Job], *, timeout: float = 600.0) -> Iterator[None]:
        """Within it all of `jobs` decode together. At the end they are cancelled.

        Raises LoopFailedError where one has ended before, or made way for another for want of pages.
        """
        keys = self._announce(jobs)
        self._begun = 0
        for key, job in zip(keys, jobs, strict=True):
            self.loop.submit(job.request(key))
        self._wait(lambda: self._begun == len(jobs) or self._open < len(jobs), timeout)
        if self._open == len(jobs):
            yield
        for key in keys:
            self.loop.cancel(key)
        self._wait(lambda: self._open == 0, timeout)
        reasons = [self._answers.pop(key).finish_reason for key in keys]
        if self.loop.state().preemptions:
            raise LoopFailedError("requests made way for one another: the loop has too few pages")
        if any(reason is not FinishReason.CANCELLED for reason in reasons):
            raise LoopFailedError("a request ended before the measurement")

    def watch(self, steps: int, *, settle: int = 8, timeout: float = 600.0) -> list[Arrival]:
        """The arrivals at the borders of `steps` steps in a row, after `settle` of them."""
        gc.collect()
        self.arrivals.clear()
        self._wait(lambda: len(self.arrivals) > settle + steps or self._open == 0, timeout)
        if len(self.arrivals) <= settle + steps:
            raise LoopFailedError("the requests ended before the measurement")
        return self.arrivals[settle : settle + steps + 1]

    @property
    def next_key(self) -> int:
        """Number of the key that the next request gets, from which on they count up."""
        return self._keys

    def _announce(self, jobs: Sequence[Job]) -> list[RequestKey]:
        keys = [RequestKey(0, self._keys + index) for index in range(len(jobs))]
        self._keys += len(jobs)
        self._answers |= {key: Answer() for key in keys}
        self._open = len(jobs)
        self.arrivals.clear()
        return keys

    def _submit_next(self) -> None:
        with self._changed:
            entry = next(self._waiting, None)
        if entry is not None:
            key, job = entry
            self.loop.submit(job.request(key))

    def _take(self, outputs: list[StepOutput]) -> None:
        at = time.perf_counter()
        tokens = drafted = ended = 0
        for output in outputs:
            answer = self._answers[output.key]
            if output.token_ids:
                self._begun += not answer.token_ids
                answer.first, answer.last = answer.first or at, at
                answer.token_ids.extend(output.token_ids)
                tokens += len(output.token_ids)
            if output.step is not None:
                drafted += output.step.drafted
            if output.logprobs:
                answer.logprobs.extend(output.logprobs)
            if output.finish_reason is not None:
                answer.usage, answer.finish_reason = output.usage, output.finish_reason
                ended += 1
        self.arrivals.append(Arrival(at, len(outputs), tokens, drafted))
        for _ in range(ended):
            self._submit_next()
        with self._changed:
            self._open -= ended
            self._changed.notify_all()

    def _wait(self, condition: Callable[[], bool], timeout: float) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, timeout):
                raise LoopFailedError(f"the loop did not get there in {timeout:.0f} s: {self.loop.state()}")


@contextmanager
def local_loop(
    model: Any, config: EngineConfig, drafts: DraftSource | None = None, grammars: GrammarCompiler | None = None
) -> Iterator[LocalLoop]:
    """A started loop over a loaded model, stopped at the end. Without `grammars` no request may have one."""
    local = LocalLoop(model, config, drafts, grammars)
    local.loop.start()
    try:
        yield local
    finally:
        local.loop.stop()
