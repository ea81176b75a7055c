from __future__ import annotations

import asyncio

import pytest

from gateway.replicas.batch_queue import BatchQueue


def test_the_reader_takes_everything_at_once_in_order() -> None:
    async def run() -> None:
        mailbox: BatchQueue[int] = BatchQueue()
        mailbox.put(1)
        mailbox.put(2)
        assert len(mailbox) == 2
        assert await mailbox.take() == [1, 2]
        assert len(mailbox) == 0

    asyncio.run(run())


def test_an_item_wakes_the_waiting_reader() -> None:
    async def run() -> None:
        mailbox: BatchQueue[str] = BatchQueue()
        reader = asyncio.create_task(mailbox.take())
        await asyncio.sleep(0)
        mailbox.put("a")
        mailbox.put("b")
        assert await reader == ["a", "b"]

    asyncio.run(run())


def test_a_cancelled_reader_loses_nothing() -> None:
    async def run() -> None:
        mailbox: BatchQueue[str] = BatchQueue()
        reader = asyncio.create_task(mailbox.take())
        await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        mailbox.put("a")
        assert await mailbox.take() == ["a"]

    asyncio.run(run())
