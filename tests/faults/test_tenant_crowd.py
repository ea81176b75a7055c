"""One tenant with more requests than there are places leaves another its share of them: real services, loopback."""

from __future__ import annotations

import asyncio
import time

import pytest

from slipstream import AsyncClient
from slipstream.rpc.errors import ResourceExhaustedError
from support.ask import state, wait_until
from support.cluster import Cluster

PLACES = ("--max-running", "4", "--max-queued", "28")
CROWD, LONG = 40, 240
FEW, SHORT = 12, 8


@pytest.fixture(scope="module", params=["fair", "fcfs"])
def cluster(request, tiny_model):
    with Cluster(tiny_model, verify_args=(*PLACES, f"--scheduling={request.param}")) as started:
        yield started, request.param


async def ask(client, tenant, tokens, seed):
    """When the answer was there, time.monotonic(); or the refusal."""
    try:
        await client.generate(
            token_ids=[5, 6, 7, seed], tenant=tenant, max_tokens=tokens, ignore_eos=True, seed=seed,
            speculation={"enabled": False},
        )  # fmt: skip
    except ResourceExhaustedError as error:
        return error
    return time.monotonic()


async def crowd(cluster):
    async with AsyncClient(cluster.gateway_grpc) as client:
        heavy = [asyncio.create_task(ask(client, "heavy", LONG, seed)) for seed in range(CROWD)]
        await asyncio.to_thread(wait_until, lambda: state(cluster).running == 4, "no request runs")
        await asyncio.to_thread(
            wait_until, lambda: sum(each.done() for each in heavy) >= CROWD - 32, "nobody is refused"
        )
        light = await asyncio.gather(*(ask(client, "light", SHORT, seed) for seed in range(FEW)))
        return light, await asyncio.gather(*heavy)


def test_a_crowd_leaves_another_tenant_its_places(cluster):
    started, scheduling = cluster
    light, heavy = asyncio.run(crowd(started))
    refusals = [answer for answer in light if isinstance(answer, ResourceExhaustedError)]
    if scheduling == "fcfs":
        assert refusals
        return
    assert not refusals
    served = [answer for answer in heavy if not isinstance(answer, ResourceExhaustedError)]
    assert len(served) >= 32 - FEW
    assert max(light) < sorted(served)[len(served) // 2]
    assert all(answer.retry_after >= 1 for answer in heavy if isinstance(answer, ResourceExhaustedError))
