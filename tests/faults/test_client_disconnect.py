"""A client that goes away frees its pages within two verify steps."""

import asyncio

import httpx
import pytest

from benchmarks.runner import connect, verify_state
from support.ask import jobs, state, wait_until
from support.cluster import Cluster
from support.hostile import HostileDrafter

STEP_SECONDS = 0.5


@pytest.fixture(scope="module")
def cluster(tiny_model):
    arguments = ("--proposers", "slow", "--default-proposer", "slow", "--draft-deadline-ms", "5000")
    with Cluster(tiny_model, verify_args=arguments) as started:
        yield started


@pytest.fixture(scope="module")
def slow_steps(cluster):
    """A drafter that is slow but in time sets the pace: a step takes STEP_SECONDS and no processor."""
    drafter = HostileDrafter(
        cluster.verify_address, lambda wanted: [wanted.tree([5], [-1])], name="slow", delay=STEP_SECONDS
    )
    with drafter:
        yield


def held(counters):
    return counters.pages_total - counters.pages_free - counters.pages_cached


def wait_until_running(cluster, steps=2):
    first = state(cluster).steps
    wait_until(lambda: state(cluster).steps >= first + steps and held(state(cluster)) > 0, "never running")


def assert_freed_within_two_steps(cluster, gone):
    wait_until(lambda: not state(cluster).running and not held(state(cluster)), "pages were never freed")
    assert state(cluster).steps - gone.steps <= 2


def test_grpc_client_cancels(cluster, slow_steps):
    async def run():
        async with connect(cluster.gateway_grpc) as runner:
            stream = asyncio.create_task(runner.generate(jobs(1, tokens=400, proposer="slow")[0]))
            await asyncio.to_thread(wait_until_running, cluster)
            stream.cancel()
            gone = verify_state(cluster.verify_address)
            await asyncio.gather(stream, return_exceptions=True)
            return gone

    assert_freed_within_two_steps(cluster, asyncio.run(run()))


@pytest.mark.parametrize("stream", [True, False])
def test_http_client_hangs_up(cluster, slow_steps, stream):
    async def run():
        async with httpx.AsyncClient(base_url=cluster.http_url, timeout=60) as client:
            model = (await client.get("/v1/models")).json()["data"][0]["id"]
            body = {
                "model": model,
                "prompt": [11, 12, 13] * 20,
                "max_tokens": 400,
                "ignore_eos": True,
                "stream": stream,
            }
            request = asyncio.create_task(client.post("/v1/completions", json=body))
            await asyncio.to_thread(wait_until_running, cluster)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
            return state(cluster)

    assert_freed_within_two_steps(cluster, asyncio.run(run()))
