"""Choices that wait at one verify service when another one comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gateway.core.request import ChoiceRequest, Sampling, StepOutput
from gateway.replicas.replica import Replica
from gateway.replicas.resumable_stream import ResumableStream
from gateway.replicas.router import MOVED_TOGETHER
from gateway.replicas.routing import LeastLoaded, Prefix, RoutingPolicy
from gateway.replicas.verify_client import VerifyClient
from slipstream.directory.member import Member
from support.fake_verify import FakeVerify

PROMPT = [3 + index % 500 for index in range(40)]
COUNT = 12
BEGUN = 4


class Choice:
    """A choice, and what came of it."""

    def __init__(self, received: int = 0, tokens: int = 4) -> None:
        self.ended = asyncio.Event()
        sampling = Sampling(max_tokens=tokens, seed=1, ignore_eos=True)
        self.stream = ResumableStream(ChoiceRequest(PROMPT, sampling), self._deliver)
        self.stream.received = PROMPT[:received]

    def _deliver(self, output: StepOutput) -> None:
        assert output.error is None
        if output.finish_reason is not None:
            self.ended.set()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # no event tells
            await asyncio.sleep(0.002)


async def moved(first: FakeVerify, second: FakeVerify, policy: RoutingPolicy) -> tuple[list[Choice], list[str]]:
    """Choices that were sent to the first service, some of which have begun, and where they are with a second one."""
    client = VerifyClient([first.address, second.address], timeout=5.0, resume_seconds=60.0, policy=policy)
    second.stop()
    await client.start()
    try:
        await until(lambda: client.ready)
        choices = [Choice(received=index % 3) for index in range(COUNT)]
        for choice in choices:
            client.submit([choice.stream])
        for choice in choices[:BEGUN]:
            choice.stream.begun = True
        await until(lambda: len(first.seen.submits) == COUNT)
        second.start()
        await until(lambda: second.seen.submits)
        places = [_place(choice) for choice in choices]
        for choice, place in zip(choices, places, strict=True):
            if place == second.address:
                await asyncio.wait_for(choice.ended.wait(), 60)
        await until(lambda: len(first.seen.cancels) == places.count(second.address))
        return choices, places
    finally:
        await client.close()


def _place(choice: Choice) -> str:
    replica: Replica | None = choice.stream.replica
    return "" if replica is None else replica.address


@pytest.mark.parametrize("policy", [LeastLoaded(), Prefix()], ids=lambda policy: policy.name)
def test_what_waits_elsewhere_moves_to_a_service_that_comes_and_what_has_begun_stays(policy: RoutingPolicy) -> None:
    with FakeVerify() as first, FakeVerify() as second:
        first.reset(first_seconds=600)
        choices, places = asyncio.run(moved(first, second, policy))
        assert places[:BEGUN] == [first.address] * BEGUN
        assert places == sorted(places, key=lambda place: place == second.address), "the latest go first"
        assert places.count(second.address) == COUNT // 2
        for choice in choices[COUNT // 2 :]:
            assert choice.stream.received == PROMPT[:4]
            assert choice.stream.losses == 0
            ((_, former, later, position),) = choice.stream.resumes
            assert (former, later) == (first.address, second.address)
            assert position < 3
        sent = [len(submit.output_token_ids) for submit in second.seen.submits[: COUNT // 2]]
        assert sent == [index % 3 for index in reversed(range(COUNT // 2, COUNT))]


def test_nothing_moves_to_a_service_of_another_model() -> None:
    async def scenario(first: FakeVerify, other: FakeVerify) -> None:
        client = VerifyClient([first.address, other.address], timeout=5.0, resume_seconds=60.0, policy=LeastLoaded())
        other.stop()
        await client.start()
        try:
            await until(lambda: client.ready)
            choices = [Choice() for _ in range(COUNT)]
            for choice in choices:
                client.submit([choice.stream])
            other.start()
            await until(lambda: all(replica.info is not None for replica in client.replicas))
            assert [replica.load for replica in client.replicas] == [COUNT, 0]
        finally:
            await client.close()

    with FakeVerify() as first, FakeVerify(fingerprint="0" * 64) as other:
        first.reset(first_seconds=600)
        asyncio.run(scenario(first, other))
        assert not other.seen.submits


def test_streams_of_a_service_that_drains_move_a_few_at_a_time_and_the_others_go_on_meanwhile() -> None:
    async def scenario(first: FakeVerify, second: FakeVerify) -> None:
        client = VerifyClient([], timeout=5.0, resume_seconds=60.0, policy=LeastLoaded())
        await client.start()
        try:
            client.update([Member(first.address)])
            await until(lambda: client.ready)
            choices = [Choice(tokens=400) for _ in range(2 * MOVED_TOGETHER + 3)]
            client.submit([choice.stream for choice in choices])
            await until(lambda: all(choice.stream.received for choice in choices))
            client.update([Member(first.address), Member(second.address)])
            await until(lambda: len(client.usable) == 2)
            client.update([Member(first.address, draining=True), Member(second.address)])
            await until(lambda: len(second.seen.submits) == MOVED_TOGETHER)
            staying = [choice.stream for choice in choices if _place(choice) == first.address]
            before = [len(stream.received) for stream in staying]
            await until(lambda: all(len(stream.received) > was for stream, was in zip(staying, before, strict=True)))
            assert len(second.seen.submits) == MOVED_TOGETHER
            second.script.first_seconds = 0.0
            for choice in choices:
                if _place(choice) == second.address:
                    client.cancel(choice.stream)
            await until(lambda: all(stream.replica is client.replicas[1] for stream in staying))
            for choice in choices:
                if choice.stream in staying:
                    await asyncio.wait_for(choice.ended.wait(), 60)
                    assert choice.stream.received == (PROMPT * 10)[:400]
        finally:
            await client.close()

    with FakeVerify() as first, FakeVerify() as second:
        first.reset(step_seconds=0.2)
        second.reset(first_seconds=600)
        asyncio.run(scenario(first, second))
