"""Requests that stream again and again while something is done to the services, and when each token of them came."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any, NamedTuple

import grpc

from benchmarks.lib.runner import Answer, Job, Runner, connect

COMPLETE = "FINISH_REASON_LENGTH"


class Pause(NamedTuple):
    """Between two messages of one stream that carried tokens: time.perf_counter() in seconds."""

    begin: float
    end: float
    stream: int

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(slots=True)
class Traffic:
    """What came of the jobs: (index of the job, its answer) in the order of their ends, and what clients were told."""

    answers: list[tuple[int, Answer]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        return sum(len(answer.token_ids) for _, answer in self.answers)

    @property
    def pauses(self) -> list[float]:
        """Seconds between two messages of one stream that carried tokens."""
        return [pause.seconds for pause in self._between()]

    def longest_within(self, begin: float, end: float) -> float:
        """The longest pause that overlaps a span of time; 0.0 if there is none."""
        return max((each.seconds for each in self._between() if each.begin < end and each.end > begin), default=0.0)

    def by_begin(self) -> list[Pause]:
        """All pauses, those that began first in front."""
        return sorted(self._between())

    def include(self, other: Traffic) -> None:
        """Count what came of other streams too."""
        self.answers += other.answers
        self.failures += other.failures

    def compare(self, plain: Sequence[Sequence[int]]) -> dict[str, Any]:
        """How many answers there are, and how many of them failed or differ from those of plain decoding."""
        incomplete = sum(answer.finish_reason != COMPLETE for _, answer in self.answers)
        return {
            "answers": len(self.answers),
            "failed": incomplete + len(self.failures),
            "failures": sorted(set(self.failures))[:4],
            "differing": sum(tuple(plain[index]) != answer.token_ids for index, answer in self.answers),
        }

    def _between(self) -> Iterator[Pause]:
        for stream, answer in self.answers:
            for begin, end in itertools.pairwise(answer.arrivals):
                yield Pause(begin, end, stream)


def about(pauses: Sequence[Pause], moment: float) -> list[Pause]:
    """Those that a moment (time.perf_counter) fell into."""
    return [pause for pause in pauses if pause.begin <= moment <= pause.end]


def once(address: str, jobs: Sequence[Job]) -> Traffic:
    """Each job once, all at the same time."""
    return _run(address, jobs, None)


def while_doing(address: str, jobs: Sequence[Job], act: Callable[[], None]) -> Traffic:
    """Each job again and again, all at the same time, until `act` has returned; what has begun then is finished.

    The streams are read in another process: starting services holds this one up, which is no pause of theirs.
    """
    context = multiprocessing.get_context("spawn")
    over = context.Event()
    receiver, sender = context.Pipe(duplex=False)
    client = context.Process(target=_client, args=(address, jobs, over, sender))
    client.start()
    sender.close()
    try:
        act()
    finally:
        over.set()
    traffic: Traffic = receiver.recv()
    client.join()
    return traffic


def _client(address: str, jobs: Sequence[Job], over: Event, sender: Connection) -> None:
    sender.send(_run(address, jobs, lambda: bool(over.wait())))


def _run(address: str, jobs: Sequence[Job], act: Callable[[], object] | None) -> Traffic:
    traffic = Traffic()

    async def run() -> None:
        over = asyncio.Event()
        async with connect(address) as runner:
            streams = [_stream(runner, index, job, over, traffic) for index, job in enumerate(jobs)]
            running = [asyncio.create_task(stream) for stream in streams]
            try:
                if act is not None:
                    await asyncio.to_thread(act)
            finally:
                over.set()
                await asyncio.gather(*running)

    begun = time.perf_counter()
    asyncio.run(run())
    traffic.seconds = time.perf_counter() - begun
    return traffic


async def _stream(runner: Runner, index: int, job: Job, over: asyncio.Event, traffic: Traffic) -> None:
    while True:
        try:
            traffic.answers.append((index, await runner.generate(job)))
        except grpc.RpcError as error:
            traffic.failures.append(str(error.code()) if isinstance(error, grpc.aio.AioRpcError) else repr(error))
        if over.is_set():
            return
