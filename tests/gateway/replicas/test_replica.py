"""Many choices of a long prompt on their way to a verify service, when the service breaks or nobody wants them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gateway import codec
from gateway.core.request import ChoiceRequest, Sampling, StepOutput
from gateway.replicas.resumable_stream import ResumableStream
from gateway.replicas.verify_client import VerifyClient
from slipstream.generation_types import FinishReason
from support.fake_verify import FakeVerify, Script

PROMPT = [3 + index % 500 for index in range(20_000)]
WIRE = codec.write_prompt(PROMPT)


class Choice:
    """A choice of four tokens, and what it was told."""

    def __init__(self, index: int) -> None:
        self.outputs: list[StepOutput] = []
        self.ended = asyncio.Event()
        sampling = Sampling(max_tokens=4, seed=1, ignore_eos=True)
        request = ChoiceRequest(PROMPT, sampling, choice_index=index, prompt_wire=WIRE)
        self.stream = ResumableStream(request, self._deliver)

    def _deliver(self, output: StepOutput) -> None:
        self.outputs.append(output)
        if output.finish_reason is not None:
            self.ended.set()


@asynccontextmanager
async def connected(verify: FakeVerify) -> AsyncIterator[VerifyClient]:
    client = VerifyClient([verify.address], timeout=5.0, resume_seconds=60.0)
    await client.start()
    try:
        await until(lambda: client.ready)
        yield client
    finally:
        await client.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # no event tells
            await asyncio.sleep(0.002)


def test_all_choices_are_answered_when_the_service_breaks_before_it_has_heard_of_most() -> None:
    async def scenario(verify: FakeVerify) -> None:
        async with connected(verify) as client:
            choices = [Choice(index) for index in range(128)]
            client.submit([choice.stream for choice in choices])
            async with asyncio.timeout(60):
                await asyncio.gather(*(choice.ended.wait() for choice in choices))
            for choice in choices:
                assert [output.finish_reason for output in choice.outputs] == [None] * 3 + [FinishReason.LENGTH]
                assert choice.stream.received == PROMPT[:4]
            assert client.replicas[0].load == 0

    with FakeVerify(max_context=30_000) as verify:
        verify.reset(breaks=[0])
        asyncio.run(scenario(verify))
        assert 128 < len(verify.seen.submits) < 2 * 128
        assert {submit.choice_index for submit in verify.seen.submits} == set(range(128))
        assert all(submit.prompt_token_ids == PROMPT for submit in verify.seen.submits)


def test_choices_cancelled_on_their_way_are_told_to_the_service_or_never_sent() -> None:
    async def scenario(verify: FakeVerify) -> None:
        async with connected(verify) as client:
            choices = [Choice(index) for index in range(128)]
            client.submit([choice.stream for choice in choices])
            await until(lambda: verify.seen.submits)
            for choice in choices:
                client.cancel(choice.stream)
            assert client.replicas[0].load == 0
            verify.script = Script()
            later = Choice(0)
            client.submit([later.stream])
            async with asyncio.timeout(60):
                await later.ended.wait()
            assert later.stream.received == PROMPT[:4]
            assert not any(choice.outputs for choice in choices)

    with FakeVerify(max_context=30_000) as verify:
        verify.reset(first_seconds=600)
        asyncio.run(scenario(verify))
        sent = [submit.request_id for submit in verify.seen.submits]
        assert len(sent) < 128
        assert set(sent[:-1]) < set(verify.seen.cancels)
        assert sent[-1] not in verify.seen.cancels
