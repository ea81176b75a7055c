"""Processes that play a load on a server together, and bring the answers back."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from multiprocessing.sharedctypes import Synchronized
from types import TracebackType
from typing import Self

import uvloop

from benchmarks.serving.answer import Answer, Exchange, read_answer
from benchmarks.serving.client import Connection, ServerAddress
from benchmarks.serving.load import LoadParts, Loop, Schedule

LEAD_SECONDS = 0.2
"""From the sending of a task to its begin, so that all processes have it by then."""
BREATH_SECONDS = 0.1
"""Before a client whose request failed asks again."""


@dataclass(frozen=True, slots=True)
class Task:
    """One process's part of a load. `bodies`: a request's body by prompt. `begin`: time.perf_counter()."""

    target: ServerAddress
    plan: LoadParts
    bodies: Sequence[bytes]
    begin: float


@dataclass(frozen=True, slots=True)
class Played:
    """A load that was played from `begin` on, time.perf_counter(), and all its answers in the order of sending."""

    begin: float
    answers: tuple[Answer, ...]


class CrowdError(RuntimeError):
    """A process of the crowd ended."""


class Crowd:
    """Use as a context manager; the processes live from its begin to its end."""

    def __init__(self, processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._next: Synchronized[int] = context.Value("q", 0)
        self._pipes: list[Pipe] = []
        self._processes = []
        for _ in range(processes):
            ours, theirs = context.Pipe()
            self._processes.append(context.Process(target=_serve, args=(theirs, self._next), daemon=True))
            self._pipes.append(ours)

    def __enter__(self) -> Self:
        for process in self._processes:
            process.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.terminate()
            process.join()

    def play(self, target: ServerAddress, plan: LoadParts, bodies: Sequence[bytes]) -> Played:
        """Play a load; returns when the last answer is there. CrowdError."""
        self._next.value = 0
        tasks = [part for index in range(len(self._pipes)) if _size(part := plan.part(index, len(self._pipes)))]
        begin = time.perf_counter() + LEAD_SECONDS
        pipes = self._pipes[: len(tasks)]
        answers: list[Answer] = []
        try:
            for pipe, part in zip(pipes, tasks, strict=True):
                pipe.send(Task(target, part, bodies, begin))
            for pipe in pipes:
                answers += pipe.recv()
        except (EOFError, OSError) as error:
            raise CrowdError("a process that plays clients has ended") from error
        return Played(begin, tuple(sorted(answers, key=lambda answer: answer.sent)))


def _size(plan: LoadParts) -> int:
    return len(plan.clients) if isinstance(plan, Loop) else len(plan.arrivals)


def _serve(pipe: Pipe, counter: Synchronized[int]) -> None:
    """The life of a process: one task after another until the pipe is closed."""
    while True:
        try:
            task: Task = pipe.recv()
        except EOFError:
            return
        exchanges = uvloop.run(_play(task, counter))
        pipe.send([read_answer(exchange) for exchange in exchanges])


async def _play(task: Task, counter: Synchronized[int]) -> list[Exchange]:
    plan, exchanges = task.plan, list[Exchange]()
    async with asyncio.TaskGroup() as group:
        if isinstance(plan, Loop):
            for on, off in plan.clients:
                group.create_task(_client(task, plan, (task.begin + on, task.begin + off), counter, exchanges))
        else:
            group.create_task(_send_when_due(task, plan, group, exchanges))
    return exchanges


async def _client(
    task: Task, plan: Loop, times: tuple[float, float], counter: Synchronized[int], exchanges: list[Exchange]
) -> None:
    on, off = times
    await _until(on)
    connection = Connection(task.target)
    asked = False
    while not asked or time.perf_counter() < off:
        number = _take(counter)
        if number >= plan.requests:
            break
        prompt, asked = number % len(task.bodies), True
        exchanges.append(await connection.ask(prompt, task.bodies[prompt], time.perf_counter()))
        if exchanges[-1].failure:
            await asyncio.sleep(BREATH_SECONDS)
    connection.close()


async def _send_when_due(task: Task, plan: Schedule, group: asyncio.TaskGroup, exchanges: list[Exchange]) -> None:
    idle: list[Connection] = []

    async def ask(prompt: int, due: float) -> None:
        connection = idle.pop() if idle else Connection(task.target)
        exchanges.append(await connection.ask(prompt, task.bodies[prompt], due))
        idle.append(connection)

    for at, prompt in plan.arrivals:
        await _until(task.begin + at)
        group.create_task(ask(prompt, task.begin + at))


def _take(counter: Synchronized[int]) -> int:
    with counter.get_lock():
        number = counter.value
        counter.value = number + 1
    return number


async def _until(at: float) -> None:
    while (left := at - time.perf_counter()) > 0:  # noqa: ASYNC110  # timers of a loop may be a millisecond early
        await asyncio.sleep(left)
