"""A session hands out what has gathered, in order, and ends when told to."""

from __future__ import annotations

import asyncio

import pytest

from slipstream.generation_types import FinishReason
from slipstream.rpc.errors import InvalidArgumentError, UnavailableError
from verify_service.core.adapters import Adapter, AdapterList
from verify_service.core.request import RequestKey, StepOutput
from verify_service.server.session import MAX_OUTPUTS, Session


def output(request_id: int, *, last: bool = False) -> StepOutput:
    return StepOutput(RequestKey(1, request_id), (5,), finish_reason=FinishReason.STOP if last else None)


def test_outputs_gather_while_the_stream_is_busy() -> None:
    async def scenario() -> None:
        session = Session(1)
        waiting = asyncio.create_task(session.take())
        await asyncio.sleep(0)
        session.put([output(1)])
        assert [one.key.request_id for one in (await waiting)[0]] == [1]
        session.put([output(1), output(2)])
        session.put([output(1)])
        assert [one.key.request_id for one in (await session.take())[0]] == [1, 2, 1]

    asyncio.run(scenario())


def test_requests_that_start_are_told_without_an_output() -> None:
    async def scenario() -> None:
        session = Session(1)
        waiting = asyncio.create_task(session.take())
        await asyncio.sleep(0)
        session.start([4])
        assert await waiting == ([], [4], None, None)
        session.start([5])
        session.put([output(4)])
        session.start([6])
        outputs, started, *_ = await session.take()
        assert (len(outputs), started) == (1, [5, 6])

    asyncio.run(scenario())


def test_a_message_holds_a_bounded_number_of_outputs() -> None:
    async def scenario() -> None:
        session = Session(1)
        session.put([output(i) for i in range(MAX_OUTPUTS + 3)])
        assert len((await session.take())[0]) == MAX_OUTPUTS
        assert len((await session.take())[0]) == 3

    asyncio.run(scenario())


def test_an_id_is_in_use_until_its_last_output() -> None:
    session = Session(1)
    session.begin(7)
    with pytest.raises(InvalidArgumentError):
        session.begin(7)
    session.put([output(7)])
    with pytest.raises(InvalidArgumentError):
        session.begin(7)
    session.put([output(7, last=True)])
    session.begin(7)


def test_a_half_closed_session_ends_after_its_last_answer() -> None:
    async def scenario() -> None:
        session = Session(1)
        session.begin(7)
        session.half_close()
        waiting = asyncio.create_task(session.take())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        session.put([output(7, last=True)])
        assert len((await waiting)[0]) == 1
        assert await session.take() == ([], [], None, None)

    asyncio.run(scenario())


def test_the_end_comes_after_what_waits() -> None:
    async def scenario() -> None:
        session = Session(1)
        session.put([output(7)])
        session.end(UnavailableError("stop"))
        assert not session.sent.is_set()
        assert len((await session.take())[0]) == 1
        with pytest.raises(UnavailableError):
            await session.take()
        assert session.sent.is_set()

    asyncio.run(scenario())


def test_adapters_are_told_when_they_change() -> None:
    async def scenario() -> None:
        session = Session(1)
        for name in ("a", "b"):  # of changes that nobody has read yet, the last is told
            session.tell_adapters(AdapterList(1, (Adapter(name, f"{name}@1", 0, 8, "/"),)))
        assert (await session.take()).adapters == AdapterList(1, (Adapter("b", "b@1", 0, 8, "/"),))
        session.tell_adapters(AdapterList(2))
        assert not (await session.take()).is_end
        session.half_close()
        assert (await session.take()).is_end

    asyncio.run(scenario())
