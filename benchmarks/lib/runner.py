"""Runs many requests against a gateway, so many at a time, and keeps what each was answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc

from benchmarks.lib.prompts import Prompt
from slipstream.rpc.channel import open_channel, open_sync_channel
from slipstream.v1 import gateway_pb2, gateway_pb2_grpc, sampling_pb2, verify_pb2, verify_pb2_grpc

REQUEST_SECONDS = 600.0
"""Deadline of one request: a benchmark that hangs must end."""

STATE_SECONDS = 30.0
"""Deadline of a look at the counters: a machine that is busy takes its time to connect."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request. `proposer` empty: speculation off. `adaptive`: nothing is said about it, the operator decides."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    proposer: str = ""
    max_nodes: int | None = None
    max_depth: int | None = None
    logprobs: int | None = None
    ignore_eos: bool = False
    tenant: str = ""
    top_p: float = 1.0
    presence_penalty: float = 0.0
    adaptive: bool = False
    adapter: str = ""
    """The LoRA adapter; empty: the model alone."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request yielded. Times in seconds from its start, as the client saw them."""

    token_ids: tuple[int, ...]
    finish_reason: str
    verify_steps: int
    drafted: int
    accepted: int
    cached_tokens: int
    first_token: float
    total: float
    logprobs: tuple[float, ...] = ()
    """Of the chosen tokens, then of all competitors in order, where they were asked for."""
    accepted_by_step: tuple[int, ...] = ()
    longest_pause: float = 0.0
    """Between two messages that carried tokens."""
    arrivals: tuple[float, ...] = ()
    """When each message that carried tokens came, by time.perf_counter()."""

    @property
    def decode_steps(self) -> int:
        """Verify steps after the one that ended the prompt, which cannot hold a tree."""
        return max(self.verify_steps - 1, 0)

    @property
    def decoded(self) -> int:
        """Tokens that the decode steps yielded."""
        return max(len(self.token_ids) - 1, 0)


def sampling_of(job: Job) -> sampling_pb2.SamplingParams:
    """How the job's tokens are drawn, as a message."""
    return sampling_pb2.SamplingParams(
        temperature=job.temperature,
        seed=job.seed,
        max_tokens=job.max_tokens,
        ignore_eos=job.ignore_eos,
        logprobs=job.logprobs,
        top_p=job.top_p,
        presence_penalty=job.presence_penalty,
    )


def speculation_of(job: Job) -> sampling_pb2.Speculation | None:
    """How the job is drafted for, as a message; None leaves it to the service."""
    if job.adaptive:
        return None
    return sampling_pb2.Speculation(
        enabled=bool(job.proposer), proposer=job.proposer, max_nodes=job.max_nodes, max_depth=job.max_depth
    )


def request_of(job: Job) -> gateway_pb2.GenerateRequest:
    """The job as the gateway's message."""
    return gateway_pb2.GenerateRequest(
        token_ids=gateway_pb2.TokenIds(ids=job.prompt_ids),
        sampling=sampling_of(job),
        speculation=speculation_of(job),
        tenant=job.tenant,
        adapter_id=job.adapter,
    )


class Runner:
    """A client of one gateway. Use within `connect`."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = gateway_pb2_grpc.GatewayServiceStub(channel)

    async def tokenize(self, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
        """Token ids of each prompt under the model's chat template."""
        ids: list[tuple[int, ...]] = []
        for prompt in prompts:
            messages = [gateway_pb2.ChatMessage(role=role, content=text) for role, text in prompt.messages]
            request = gateway_pb2.TokenizeRequest(chat=gateway_pb2.Chat(messages=messages))
            ids.append(tuple((await self._stub.Tokenize(request, timeout=REQUEST_SECONDS)).token_ids))
        return ids

    async def run(
        self, jobs: Sequence[Job], concurrency: int, done: Callable[[], object] = lambda: None
    ) -> list[Answer]:
        """Answers in the order of `jobs`; `concurrency` requests are in flight until none waits."""
        answers: dict[int, Answer] = {}
        waiting = iter(enumerate(jobs))

        async def work() -> None:
            for index, job in waiting:
                answers[index] = await self.generate(job)
                done()

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
        return [answers[index] for index in range(len(jobs))]

    async def generate(self, job: Job) -> Answer:
        start = time.perf_counter()
        first = latest = longest = 0.0
        tokens: list[int] = []
        chosen: list[float] = []
        others: list[float] = []
        steps: list[int] = []
        arrivals: list[float] = []
        last = gateway_pb2.GenerateResponse()
        async for message in self._stub.Generate(request_of(job), timeout=REQUEST_SECONDS):
            if message.token_ids:
                now = time.perf_counter() - start
                first = first or now
                longest = max(longest, now - (latest or now))
                latest = now
                arrivals.append(start + now)
            tokens.extend(message.token_ids)
            for position in message.logprobs:
                chosen.append(position.chosen.logprob)
                others.extend(value for each in position.top for value in (each.token_id, each.logprob, each.rank))
            if message.HasField("step"):
                steps.append(message.step.accepted)
            last = message
        return Answer(
            token_ids=tuple(tokens),
            finish_reason=sampling_pb2.FinishReason.Name(last.finish_reason),
            verify_steps=last.usage.verify_steps,
            drafted=last.usage.drafted_tokens,
            accepted=last.usage.accepted_tokens,
            cached_tokens=last.usage.cached_tokens,
            first_token=first,
            total=time.perf_counter() - start,
            logprobs=(*chosen, *others),
            accepted_by_step=tuple(steps),
            longest_pause=longest,
            arrivals=tuple(arrivals),
        )


@asynccontextmanager
async def connect(gateway_grpc: str) -> AsyncIterator[Runner]:
    """A runner on a gateway's gRPC address."""
    channel = open_channel(gateway_grpc)
    try:
        yield Runner(channel)
    finally:
        await channel.close()


def verify_state(address: str) -> verify_pb2.GetStateResponse:
    """The verify service's counters of the moment; waits for a service that is not there yet."""
    with open_sync_channel(address) as channel:
        stub = verify_pb2_grpc.VerifyServiceStub(channel)
        state: verify_pb2.GetStateResponse = stub.GetState(
            verify_pb2.GetStateRequest(), timeout=STATE_SECONDS, wait_for_ready=True
        )
        return state


def verify_info(address: str) -> verify_pb2.GetInfoResponse:
    """Facts about the verify service, its proposers among them."""
    with open_sync_channel(address) as channel:
        stub = verify_pb2_grpc.VerifyServiceStub(channel)
        info: verify_pb2.GetInfoResponse = stub.GetInfo(
            verify_pb2.GetInfoRequest(), timeout=STATE_SECONDS, wait_for_ready=True
        )
        return info
