"""Tokens are the same wherever a request goes, and however often it moves: real services, a move at every token."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.core.request import ChoiceRequest, Sampling, StepOutput
from gateway.replicas.resumable_stream import ResumableStream
from gateway.replicas.routing import LeastLoaded, Prefix, Random, RoutingPolicy
from gateway.replicas.verify_client import VerifyClient
from slipstream.generation_types import PositionLogprobs
from slipstream.rpc.errors import UnavailableError
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from support.served_verify import Served, served

SERVICES = 3
TOKENS = 24


@dataclass
class Answer:
    """A choice, its tokens with their logprobs, and the services that decided them."""

    stream: ResumableStream = field(init=False)
    tokens: list[tuple[int, PositionLogprobs]] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    error: object = None


def requests() -> list[ChoiceRequest]:
    """Prompts that share prefixes, greedy and sampled, some choices of one prompt."""
    chance = random.Random(5)
    prefix = [chance.randrange(3, 250) for _ in range(40)]
    prompts = [[*prefix, *(chance.randrange(3, 250) for _ in range(1 + 5 * index))] for index in range(3)]
    return [
        ChoiceRequest(
            prompt,
            Sampling(
                temperature=temperature,
                seed=7,
                max_tokens=TOKENS,
                ignore_eos=True,
                logprobs=0,
                top_p=0.95,
                presence_penalty=0.5,
            ),
            choice_index=choice,
        )
        for prompt in prompts
        for temperature in (0.0, 1.0)
        for choice in range(2)
    ]


async def answers(services: list[Served], policy: RoutingPolicy, *, moves: float, seed: int = 0) -> list[Answer]:
    """Send all requests; with a chance of `moves` after each output of a stream, its service gives it back."""
    chance = random.Random(seed)
    client = VerifyClient([each.address for each in services], timeout=5.0, resume_seconds=60.0, policy=policy)
    await client.start()
    async with asyncio.timeout(120):
        while sum(replica.ready for replica in client.replicas) < len(services):  # noqa: ASYNC110  # no event tells
            await asyncio.sleep(0.01)

    def move(answer: Answer) -> None:
        replica = answer.stream.replica
        if replica is not None and not answer.ended.is_set() and answer.stream in replica.streams:
            replica.cancel(answer.stream)
            assert client.on_return(answer.stream, UnavailableError("moved"))

    def send(request: ChoiceRequest) -> Answer:
        answer = Answer()

        def deliver(output: StepOutput) -> None:
            replica = answer.stream.replica
            for token, place in zip(output.token_ids, output.logprobs or (), strict=True):
                answer.tokens.append((token, place))
                answer.places.append("" if replica is None else replica.address)
            if output.finish_reason is not None:
                answer.error = output.error
                answer.ended.set()
            elif chance.random() < moves:
                asyncio.get_running_loop().call_soon(move, answer)

        answer.stream = ResumableStream(request, deliver)
        client.submit([answer.stream])
        return answer

    try:
        async with asyncio.timeout(240):
            sent = [send(request) for request in requests()]
            await asyncio.gather(*(answer.ended.wait() for answer in sent))
    finally:
        await client.close()
    assert [answer.error for answer in sent] == [None] * len(sent)
    return sent


@pytest.mark.parametrize("moves", [0.0, 0.3, 1.0])
def test_tokens_are_those_of_one_service_under_any_routing_and_any_moves(tiny_model: Path, moves: float) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            model = CausalLM.load(tiny_model, threads=1)
            services = [await stack.enter_async_context(served(model, num_pages=48)) for _ in range(SERVICES)]
            alone = await answers(services[:1], LeastLoaded(), moves=0.0)
            assert all(len(answer.tokens) == TOKENS for answer in alone)
            for seed, policy in enumerate((Random(1), Random(2), Prefix())):
                found = await answers(services, policy, moves=moves, seed=seed)
                assert [answer.tokens for answer in found] == [answer.tokens for answer in alone]
                if isinstance(policy, Random):
                    assert len({place for answer in found for place in answer.places}) == SERVICES
                    moved = sum(len(set(answer.places)) > 1 for answer in found)
                    assert moved >= len(found) // 2 if moves else moved == 0

    asyncio.run(scenario())
