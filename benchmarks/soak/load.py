"""Load for a long time: what a server can serve at most, and then arrivals at a part of that rate, at random."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from benchmarks.lib.mixed_client import ClientOutcome, MixedClient
from benchmarks.lib.request_mix import Manners, Question
from benchmarks.lib.server_process import Server

PATIENCE_SECONDS = 120.0
"""Silence after which a client gives up."""
MOST_IN_FLIGHT = 512
"""Beyond which no request is sent any more: an arrival then counts as SHED, a failure."""
SHED = "SHED"
WARM_UP = 0.2
"""Of the time that capacity is measured, as much before it."""


class Request(NamedTuple):
    """One request that has ended. Times in seconds, None where the client could see none."""

    ended: float
    """time.perf_counter()"""
    tokens: int
    ttft: float | None
    """from sending it to its first token"""
    tpot: float | None
    """between two tokens of a choice after the first, on average"""
    failure: str | None

    @classmethod
    def of(cls, outcome: ClientOutcome) -> Request:
        """What is kept of an outcome. Only of streams that are read steadily times are the server's."""
        ttft = tpot = None
        steady = outcome.answered and outcome.manner.reading == "steadily"
        if steady and (outcome.manner.streamed or outcome.question.api == "grpc") and outcome.arrivals:
            ttft = outcome.arrivals[0] - outcome.started
            later = outcome.total / outcome.question.n - 1
            if len(outcome.arrivals) > 1 and later >= 1:
                tpot = (outcome.arrivals[-1] - outcome.arrivals[0]) / later
        failure = None if outcome.failure is None else outcome.failure.code
        return cls(outcome.ended, outcome.total, ttft, tpot, failure)


class Capacity(NamedTuple):
    """What a server yields with so many clients that ask one request after the other."""

    requests_per_second: float
    tokens_per_second: float


async def measure_capacity(
    server: Server, asked: Sequence[Question], proposers: Sequence[str], *, clients: int, seconds: float, seed: int
) -> Capacity:
    """A closed loop for so long, after a time to warm up. RuntimeError if a request fails.

    What has begun in time counts up to its end, so that a server which is slow has a capacity, too.
    """
    ended: list[Request] = []
    begin = time.perf_counter() + WARM_UP * seconds
    end = begin + seconds

    async def work(client: MixedClient, draw: Random) -> None:
        manners = Manners(draw, proposers, faithful=True)
        while time.perf_counter() < end:
            question = draw.choice(asked)
            ended.append(Request.of(await client.ask(question, manners.next(question), PATIENCE_SECONDS)))

    async with MixedClient(server.http, server.grpc, Random(seed)) as client, asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(work(client, Random(f"capacity {seed} {number}")))
    if failed := [each.failure for each in ended if each.failure is not None]:
        raise RuntimeError(f"{len(failed)} requests failed while capacity was measured: {failed[0]}")
    counted = [each for each in ended if each.ended >= begin]
    took = max(each.ended for each in counted) - begin
    return Capacity(len(counted) / took, sum(each.tokens for each in counted) / took)


@dataclass(slots=True)
class Arrivals:
    """An open loop: requests arrive as a Poisson process, whether or not those before have ended."""

    server: Server
    asked: Sequence[Question]
    proposers: Sequence[str]
    rate: float
    """requests a second"""
    seed: int
    ended: list[Request] = field(default_factory=list)
    in_flight: int = 0

    async def run(self, seconds: float) -> None:
        """Let them arrive for so long, and return when the last one has ended."""
        draw = Random(f"arrivals {self.seed}")
        manners = Manners(draw, self.proposers)
        at = time.perf_counter()
        over = at + seconds
        async with MixedClient(self.server.http, self.server.grpc, draw) as client, asyncio.TaskGroup() as group:
            while (at := at + draw.expovariate(self.rate)) < over:
                await asyncio.sleep(max(0.0, at - time.perf_counter()))
                question = draw.choice(self.asked)
                if self.in_flight >= MOST_IN_FLIGHT:
                    self.ended.append(Request(time.perf_counter(), 0, None, None, SHED))
                else:
                    self.in_flight += 1
                    group.create_task(self._ask(client, question, manners))

    async def _ask(self, client: MixedClient, question: Question, manners: Manners) -> None:
        try:
            outcome = await client.ask(question, manners.next(question), PATIENCE_SECONDS)
            self.ended.append(Request.of(outcome))
        finally:
            self.in_flight -= 1
