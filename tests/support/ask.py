"""Requests to a running cluster, from tests that are not asynchronous."""

import asyncio
import random
import time
from functools import partial

from benchmarks.lib.runner import Job, connect, verify_state


def ask(cluster, jobs, concurrency=8):
    """Answers to all jobs, in order."""

    async def run():
        async with connect(cluster.gateway_grpc) as runner:
            return await runner.run(jobs, concurrency)

    return asyncio.run(run())


def ask_while(cluster, jobs, action):
    """What each job was answered each time: all at once, again and again until `action()` has returned."""

    async def run():
        async with connect(cluster.gateway_grpc) as runner:
            return await repeated_while([partial(runner.generate, job) for job in jobs], action)

    return asyncio.run(run())


async def repeated_while(asks, action):
    """What each of these async functions returns each time: all at once, again and again until `action()` has."""
    over = asyncio.Event()

    async def repeat(ask):
        answers = []
        while not over.is_set():
            answers.append(await ask())
        return answers

    async with asyncio.TaskGroup() as group:
        streams = [group.create_task(repeat(ask)) for ask in asks]
        try:
            await asyncio.to_thread(action)
        finally:
            over.set()
    return [stream.result() for stream in streams]


def jobs(count, *, tokens, length=24, vocabulary=(10, 500), temperatures=(0.0, 0.8), **fields):
    """Requests for random prompts, temperatures in turn; equal arguments give equal requests."""
    draw = random.Random(f"{count} {length}")
    prompts = [tuple(draw.randrange(*vocabulary) for _ in range(length + index)) for index in range(count)]
    return [
        Job(prompt, tokens, temperature=temperatures[i % len(temperatures)], seed=1000 + i, ignore_eos=True, **fields)
        for i, prompt in enumerate(prompts)
    ]


def state(cluster):
    """The verify service's counters."""
    return verify_state(cluster.verify_address)


def tokens_of(answers):
    return [answer.token_ids for answer in answers]


def wait_until(condition, what, timeout=120.0):
    """Poll until `condition()` holds."""
    limit = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < limit, what() if callable(what) else what
        time.sleep(0.005)
