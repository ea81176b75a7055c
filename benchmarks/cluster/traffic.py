"""Streams in a closed loop, whose answers are compared with those of an undisturbed run."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import grpc

from benchmarks.lib.runner import Answer, Job, Runner, connect

LENGTH = 24
VOCABULARY = (10, 500)


def jobs(count: int, tokens: int) -> list[Job]:
    """Requests for random prompts, greedy and sampled in turn, with logprobs."""
    draw = random.Random(count)
    prompts = [tuple(draw.randrange(*VOCABULARY) for _ in range(LENGTH + index % 8)) for index in range(count)]
    return [
        Job(prompt, tokens, temperature=(0.0, 0.8)[i % 2], seed=1000 + i, ignore_eos=True, logprobs=1, adaptive=True)
        for i, prompt in enumerate(prompts)
    ]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request, in seconds of time.perf_counter(); `failure` is empty if it was answered. `gateway`: its number.

    first_token: since `begun`. longest_pause: between two messages that carried tokens.
    """

    job: int
    begun: float
    ended: float
    first_token: float
    longest_pause: float
    changed: bool
    failure: str = ""
    gateway: int = 0

    @property
    def gap(self) -> float:
        """The longest time without a token."""
        return max(self.first_token, self.longest_pause)


@dataclass(slots=True)
class Traffic:
    """`run` asks until `over`; `outcomes` grows meanwhile. `streams` may be set to another number at any time."""

    gateways: Sequence[str]
    jobs: Sequence[Job]
    streams: int
    reference: list[Answer] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    async def learn(self) -> None:
        """Ask each request once, undisturbed: what all later answers have to equal."""
        async with connect(self.gateways[0]) as runner:
            self.reference = await runner.run(self.jobs, len(self.jobs))

    async def run(self, over: asyncio.Event) -> None:
        """Ask until told to end, then wait for what is under way."""
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            runners = [await stack.enter_async_context(connect(address)) for address in self.gateways]
            for index in range(len(self.jobs)):
                group.create_task(self._stream(index, runners, over))

    async def _stream(self, index: int, runners: Sequence[Runner], over: asyncio.Event) -> None:
        gateway = index % len(runners)
        while not over.is_set():
            if index >= self.streams:
                await asyncio.sleep(0.1)
                continue
            begun = time.perf_counter()
            try:
                answer = await runners[gateway].generate(self.jobs[index])
            except grpc.RpcError as error:
                failure = f"{error.code().name}: {error.details()}"
                self.outcomes.append(
                    Outcome(
                        index, begun, time.perf_counter(), 0.0, 0.0, changed=False, failure=failure, gateway=gateway
                    )
                )
                await asyncio.sleep(0.5)
                continue
            told = self.reference[index]
            changed = (answer.token_ids, answer.logprobs, answer.finish_reason) != (
                told.token_ids, told.logprobs, told.finish_reason,
            )  # fmt: skip
            ended = time.perf_counter()
            times = begun, ended, answer.first_token, answer.longest_pause
            self.outcomes.append(Outcome(index, *times, changed, gateway=gateway))
