"""The gateway's end of one worker's socket."""

from __future__ import annotations

import asyncio
import socket

import pytest

from gateway.text.connection import WorkerConnection, WorkerEndedError
from gateway.text.frames import write_answer


def test_a_late_worker_gets_no_further_job() -> None:
    """Its answer may still come before it is killed."""

    async def scenario() -> list[str]:
        events: list[str] = []
        ended = asyncio.Event()
        worker = WorkerConnection(1, lambda each: events.append("free"), lambda each: ended.set())
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: worker, sock=ours)
        late = asyncio.Event()
        answer = worker.ask(b"", b"", 0.01, lambda each: late.set())
        await late.wait()
        write_answer(theirs, "answer")
        assert await answer == "answer"
        theirs.close()
        await ended.wait()
        return events

    assert asyncio.run(scenario()) == []


def test_a_worker_that_is_closed_ends_its_job() -> None:
    async def scenario() -> None:
        worker = WorkerConnection(1, lambda each: None, lambda each: None)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            await asyncio.get_running_loop().create_unix_connection(lambda: worker, sock=ours)
            answer = worker.ask(b"", b"", 60.0, lambda each: None)
            worker.close()
            with pytest.raises(WorkerEndedError):
                await answer

    asyncio.run(scenario())
