"""A client that goes away frees its pages within two verify steps."""

from __future__ import annotations

import asyncio
import threading
import time

import httpx
import pytest

from benchmarks.lib.runner import connect
from support.ask import jobs, state, wait_until
from support.cluster import Cluster
from support.hostile import HostileDrafter

DEADLINE_MS = 10_000
"""A step that gets no tree lasts this long, so that a test has the time to look and to act within it."""
ARRIVAL_SECONDS = 1.5
"""What a cancellation may take from the gateway to the verify service before two steps have passed."""


class Pace:
    """A drafter's answers that come when they are permitted, one a step."""

    def __init__(self) -> None:
        self._permits = threading.Semaphore(0)

    def answer(self, wanted):
        self._permits.acquire()
        return [wanted.tree([5], [-1])]

    def permit(self, count=1):
        self._permits.release(count)


@pytest.fixture(scope="module")
def cluster(tiny_model):
    arguments = ("--proposers", "slow", "--default-proposer", "slow", "--draft-deadline-ms", str(DEADLINE_MS))
    with Cluster(tiny_model, verify_args=arguments) as started:
        yield started


@pytest.fixture
def pace(cluster):
    pace = Pace()
    with HostileDrafter(cluster.verify_address, pace.answer, name="slow"):
        yield pace
        pace.permit(1000)


def held(counters):
    return counters.pages_total - counters.pages_free - counters.pages_cached


def wait_until_running(cluster, pace):
    """Two steps have been made, and the next one waits for its tree."""
    first = state(cluster).steps
    pace.permit(2)
    wait_until(lambda: state(cluster).steps >= first + 2 and held(state(cluster)) > 0, "never running")


def running_choices(cluster):
    lines = httpx.get(f"{cluster.http_url}/metrics", timeout=60).text.splitlines()
    (value,) = [line.split()[1] for line in lines if line.startswith("slipstream_gateway_running_choices ")]
    return float(value)


def assert_freed_within_two_steps(cluster, pace, before):
    wait_until(lambda: running_choices(cluster) == 0, "the gateway has not noticed")
    time.sleep(ARRIVAL_SECONDS)
    for step in (1, 2):
        pace.permit()
        wait_until(lambda step=step: not state(cluster).running or state(cluster).steps >= before.steps + step, "stuck")
    wait_until(lambda: not state(cluster).running and not held(state(cluster)), "pages were never freed")
    assert state(cluster).steps - before.steps <= 2


def test_grpc_client_cancels(cluster, pace):
    async def run():
        async with connect(cluster.gateway_grpc) as runner:
            stream = asyncio.create_task(runner.generate(jobs(1, tokens=400, proposer="slow")[0]))
            await asyncio.to_thread(wait_until_running, cluster, pace)
            before = state(cluster)
            stream.cancel()
            await asyncio.gather(stream, return_exceptions=True)
            return before

    assert_freed_within_two_steps(cluster, pace, asyncio.run(run()))


@pytest.mark.parametrize("stream", [True, False])
def test_http_client_hangs_up(cluster, pace, stream):
    async def run():
        async with httpx.AsyncClient(base_url=cluster.http_url, timeout=60) as client:
            model = (await client.get("/v1/models")).json()["data"][0]["id"]
            body = {
                "model": model,
                "prompt": [11, 12, 13] * 20,
                "max_tokens": 400,
                "ignore_eos": True,
                "stream": stream,
                "speculation": {"enabled": True},
            }
            request = asyncio.create_task(client.post("/v1/completions", json=body))
            await asyncio.to_thread(wait_until_running, cluster, pace)
            before = state(cluster)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
            return before

    assert_freed_within_two_steps(cluster, pace, asyncio.run(run()))
