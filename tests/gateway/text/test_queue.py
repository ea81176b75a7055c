"""Who gets the next free worker."""

from __future__ import annotations

import asyncio

import pytest

from gateway.text.connection import WorkerConnection
from gateway.text.queue import WorkerQueue


def workers(count: int) -> tuple[WorkerQueue, list[WorkerConnection]]:
    queue = WorkerQueue(count)
    made = [
        WorkerConnection(number, 1.0, on_free=queue.free, on_late=queue.discard, on_end=queue.discard)
        for number in range(count)
    ]
    for worker in made:
        queue.free(worker)
    return queue, made


def test_a_free_worker_is_taken_at_once() -> None:
    queue, made = workers(2)
    taken = []
    for _ in made:
        waiting = queue.take(large=False)
        try:
            waiting.send(None)
        except StopIteration as done:
            taken.append(done.value)
    assert set(taken) == set(made)


def test_large_jobs_leave_a_worker_to_small_ones() -> None:
    async def scenario() -> None:
        queue, made = workers(2)
        first = await queue.take(large=True)
        large = asyncio.create_task(queue.take(large=True))
        await asyncio.sleep(0)
        assert not large.done()
        small = await queue.take(large=False)
        assert {first, small} == set(made)
        queue.free(small)
        await asyncio.sleep(0)
        assert not large.done()
        queue.free(first)
        assert await large in made

    asyncio.run(scenario())


def test_who_came_first_goes_first_though_another_kind_of_job_waits() -> None:
    async def scenario() -> None:
        queue, (worker,) = workers(1)
        assert await queue.take(large=False) is worker
        order: list[str] = []

        async def take(name: str, *, large: bool) -> None:
            taken = await queue.take(large=large)
            order.append(name)
            queue.free(taken)

        tasks = [
            asyncio.create_task(take(name, large=large)) for name, large in [("a", True), ("b", False), ("c", True)]
        ]
        await asyncio.sleep(0)
        queue.free(worker)
        tasks.append(asyncio.create_task(take("d", large=False)))
        await asyncio.gather(*tasks)
        assert order == ["a", "b", "c", "d"]

    asyncio.run(scenario())


def test_who_gave_up_waiting_is_passed_over() -> None:
    async def scenario() -> None:
        queue, (worker,) = workers(1)
        await queue.take(large=False)
        gone = asyncio.create_task(queue.take(large=False))
        stays = asyncio.create_task(queue.take(large=False))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        queue.free(worker)
        assert await stays is worker

    asyncio.run(scenario())
