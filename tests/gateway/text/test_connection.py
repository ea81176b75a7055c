"""The gateway's end of one worker's socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from gateway.text import connection
from gateway.text.connection import WorkerConnection, WorkerEndedError
from gateway.text.frames import Kind, read_request, write_answer
from gateway.text.prepared import WorkerTask
from slipstream.rpc.errors import InvalidArgumentError

On = Callable[[WorkerConnection], None]


def nothing(worker: WorkerConnection) -> None:
    """Stands for a callback that does not matter."""


@asynccontextmanager
async def connected(
    seconds: float = 60.0, *, on_free: On = nothing, on_late: On = nothing, on_end: On = nothing
) -> AsyncIterator[tuple[WorkerConnection, socket.socket]]:
    """A connection, and the worker's end of it."""
    worker = WorkerConnection(1, seconds, on_free=on_free, on_late=on_late, on_end=on_end)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        await asyncio.get_running_loop().create_unix_connection(lambda: worker, sock=ours)
        yield worker, theirs
        worker.close()


def test_a_late_worker_gets_no_further_job() -> None:
    """Its answer may still come before it is killed."""

    async def scenario() -> list[str]:
        events: list[str] = []
        ended, late = asyncio.Event(), asyncio.Event()
        async with connected(
            0.01,
            on_free=lambda each: events.append("free"),
            on_late=lambda each: late.set(),
            on_end=lambda each: ended.set(),
        ) as (worker, theirs):
            answer = worker.ask(WorkerTask.CHAT, b"facts", b"")
            await late.wait()
            write_answer(theirs, "answer")
            assert await answer == "answer"
            theirs.close()
            await ended.wait()
        return events

    assert asyncio.run(scenario()) == []


def test_each_job_has_its_own_time() -> None:
    """The timer of an earlier job goes off during a later one, which is late no sooner than its own time is up."""

    async def scenario() -> None:
        loop, late = asyncio.get_running_loop(), asyncio.Event()
        async with connected(0.2, on_late=lambda each: late.set()) as (worker, theirs):
            begun = loop.time()
            while loop.time() < begun + 0.15:
                answer = worker.ask(WorkerTask.CHAT, b"facts", b"")
                write_answer(theirs, "answer")
                assert await answer == "answer"
            begun = loop.time()
            worker.ask(WorkerTask.CHAT, b"facts", b"")
            await late.wait()
            assert loop.time() >= begun + 0.2

    asyncio.run(scenario())


def test_facts_cross_where_they_are_other_than_the_last() -> None:
    async def scenario() -> list[tuple[bytes, bytes]]:
        crossed = []
        async with connected() as (worker, theirs):
            for facts in (b"first", b"first", b"other", b"first"):
                answer = worker.ask(WorkerTask.CHAT, facts, b"body")
                await asyncio.sleep(0)  # until the loop has written it
                request = await asyncio.to_thread(read_request, theirs)
                assert request is not None
                crossed.append((request.facts, bytes(request.payload)))
                write_answer(theirs, None)
                await answer
        return crossed

    assert asyncio.run(scenario()) == [(b"first", b"body"), (b"", b"body"), (b"other", b"body"), (b"first", b"body")]


def test_a_worker_that_is_closed_ends_its_job() -> None:
    async def scenario() -> None:
        async with connected() as (worker, _):
            answer = worker.ask(WorkerTask.CHAT, b"facts", b"")
            worker.close()
            with pytest.raises(WorkerEndedError):
                await answer

    asyncio.run(scenario())


@pytest.mark.parametrize("ending", ["found nothing", "killed", "late"])
def test_an_answer_whose_check_does_not_end_is_the_result(ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CHECK_SECONDS", 0.01 if ending == "late" else 60.0)

    async def scenario() -> tuple[object, object]:
        free: list[WorkerConnection] = []
        async with connected(on_free=free.append, on_late=WorkerConnection.close) as (worker, theirs):
            answer = worker.ask(WorkerTask.CHAT, b"facts", b"")
            write_answer(theirs, "unchecked", Kind.UNCHECKED)
            if ending == "found nothing":
                write_answer(theirs, None)
            elif ending == "killed":
                theirs.close()
            first = await answer
            if ending != "found nothing":
                assert not free
                return first, "next"
            answer = worker.ask(WorkerTask.CHAT, b"facts", b"")
            write_answer(theirs, "next")
            return first, await answer

    assert asyncio.run(scenario()) == ("unchecked", "next")


def test_what_a_check_finds_is_raised() -> None:
    async def scenario() -> None:
        async with connected() as (worker, theirs):
            answer = worker.ask(WorkerTask.CHAT, b"facts", b"")
            write_answer(theirs, "unchecked", Kind.UNCHECKED)
            write_answer(theirs, InvalidArgumentError("no"), Kind.ERROR)
            with pytest.raises(InvalidArgumentError):
                await answer

    asyncio.run(scenario())
