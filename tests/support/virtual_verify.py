"""Verify services in virtual time: real replicas of the gateway whose session is a formula, and which may be killed."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from gateway.core.request import VerifyInfo
from gateway.replicas.prompt_prefix import PromptPrefix
from gateway.replicas.replica import Owner, Replica
from gateway.replicas.resumable_stream import ResumableStream
from slipstream.v1 import sampling_pb2, verify_pb2

INFO = VerifyInfo("tiny", "f" * 64, 512, 4096, 64, 320, frozenset((2,)), (), "")
VOCABULARY = 500


def token_at(prompt: tuple[int, ...], position: int) -> int:
    """What the service decides there."""
    return (sum(prompt) * 31 + position * 7) % VOCABULARY


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes when nothing else is left to do."""

    def __init__(self) -> None:
        super().__init__(_Selector(self))
        self.now = 1000.0

    def time(self) -> float:
        return self.now


class _Selector(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found:
            assert timeout is not None, "nothing will ever happen again"
            self._loop.now += max(0.0, timeout)
        return found


def run_virtually(patch: Callable[[str, Callable[[], float]], None], main: Coroutine[Any, Any, None]) -> None:
    """Run `main` with time.monotonic() in virtual time; `patch` sets an attribute by its name."""
    loop = VirtualLoop()
    patch("time.monotonic", loop.time)
    try:
        loop.run_until_complete(main)
    finally:
        loop.close()


@dataclass(slots=True)
class Machine:
    """How a service behaves. `fatal` maps the first token of a prompt to the position at which it ends the service."""

    start_seconds: float = 5.0
    step_seconds: float = 0.05
    lines: int = 8
    chunk: int = 64
    news_seconds: float = 0.002
    fatal: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Running:
    stream: ResumableStream
    remaining: int  # tokens whose KV is not computed


class VirtualReplica(Replica):
    """Steps of equal length; prompts share the chunk in order of arrival, and all that decode get a token a step."""

    __slots__ = ("_lines", "_machine", "_queue", "_timers", "lost_at", "outages", "tokens", "up_seconds", "up_since")

    def __init__(self, address: str, owner: Owner, *, timeout: float, machine: Machine) -> None:
        super().__init__(address, owner, timeout=timeout)
        self._machine = machine
        self._queue: list[_Running] = []
        self._lines: list[_Running] = []
        self._timers: list[asyncio.TimerHandle] = []
        self.tokens = 0
        self.lost_at: list[float] = []
        self.outages: list[tuple[float, float]] = []
        self.up_seconds = self.up_since = 0.0

    def start(self) -> None:
        self._later(self._machine.start_seconds, self._open)

    async def close(self) -> None:
        self._end()

    def submit(self, stream: ResumableStream, prompt: PromptPrefix | None = None) -> None:
        super().submit(stream, prompt)
        self._queue.append(_Running(stream, len(stream.request.prompt_token_ids) + len(stream.received)))

    def cancel(self, stream: ResumableStream) -> None:
        super().cancel(stream)
        for place in (self._queue, self._lines):
            place[:] = [each for each in place if each.stream is not stream]

    def kill(self) -> None:
        """End the service, whatever it does, and start it again."""
        self.lost_at.append(asyncio.get_running_loop().time())
        self._end()
        self.start()

    @property
    def kills(self) -> int:
        return len(self.lost_at)

    def lost_since(self, moment: float) -> float | None:
        """When whoever waits since `moment` has lost the service first: at once if it was away."""
        if any(away <= moment < back for away, back in self.outages):
            return moment
        return next((at for at in self.lost_at if at >= moment), None)

    def _open(self) -> None:
        self._refusing = self._yielded = False
        self.info, self.up_since = INFO, asyncio.get_running_loop().time()
        if self.lost_at:
            self.outages.append((self.lost_at[-1], self.up_since))
        self._owner.on_ready(self)
        self._later(0.0, self._step)

    def _end(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._queue.clear()
        self._lines.clear()
        if self.info is not None:
            self.up_seconds += asyncio.get_running_loop().time() - self.up_since
        self._lose()

    def _later(self, seconds: float, what: Callable[..., None], *arguments: Any) -> None:
        self._timers = [timer for timer in self._timers if timer.when() >= asyncio.get_running_loop().time()]
        self._timers.append(asyncio.get_running_loop().call_later(seconds, what, *arguments))

    def _step(self) -> None:
        """Start what fits; the step's outputs come at its end, unless one of its requests ends the service before."""
        machine = self._machine
        started = []
        while self._queue and len(self._lines) < machine.lines:
            self._lines.append(self._queue.pop(0))
            started.append(self._lines[-1].stream.request_id)
        if started:
            self._later(machine.news_seconds, self.take, verify_pb2.SessionResponse(started=started))
        deciding, budget, dies = [], machine.chunk, False
        for running in self._lines:
            rows = 1 if running.remaining <= 1 else min(budget, running.remaining)
            budget -= 0 if running.remaining <= 1 else rows
            if rows and rows == running.remaining:
                deciding.append(running)
                stream = running.stream
                dies |= machine.fatal.get(stream.request.prompt_token_ids[0]) == len(stream.received)
            running.remaining -= rows
        if dies:
            self._later(machine.step_seconds / 2, self.kill)
        else:
            self._later(machine.step_seconds, self._commit, deciding)

    def _commit(self, deciding: list[_Running]) -> None:
        response = verify_pb2.SessionResponse()
        for running in deciding:
            if running not in self._lines:  # cancelled meanwhile
                continue
            stream = running.stream
            prompt = tuple(stream.request.prompt_token_ids)
            running.remaining = 1
            output = response.outputs.add(request_id=stream.request_id)
            output.token_ids.append(token_at(prompt, len(prompt) + len(stream.received)))
            self.tokens += 1
            if len(stream.received) + 1 == stream.request.sampling.max_tokens:
                output.finish_reason = sampling_pb2.FINISH_REASON_LENGTH
                self._lines.remove(running)
        self.take(response)
        self._later(0.0, self._step)
