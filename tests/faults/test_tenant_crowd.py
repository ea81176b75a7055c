"""One tenant with more requests than there are places leaves another its share of them: real services, loopback."""

from __future__ import annotations

import asyncio

import pytest

from slipstream import AsyncClient
from slipstream.rpc.errors import ResourceExhaustedError
from support.cluster import Cluster

PLACES = ("--max-running", "4", "--max-queued", "28")
CROWD, LONG = 40, 240
FEW, SHORT = 12, 8
MOST_ROUNDS = 40
"""Until one without fair shares is refused, which depends on where the crowd is when it asks."""


@pytest.fixture(scope="module", params=["fair", "fcfs"])
def cluster(request, tiny_model):
    with Cluster(tiny_model, verify_args=(*PLACES, f"--scheduling={request.param}")) as started:
        yield started, request.param


async def ask(client, tenant, tokens, seed):
    """True once it is answered; or the refusal."""
    try:
        await client.generate(
            token_ids=[5, 6, 7, seed], tenant=tenant, max_tokens=tokens, ignore_eos=True, seed=seed,
            speculation={"enabled": False},
        )  # fmt: skip
    except ResourceExhaustedError as error:
        await asyncio.sleep(0.01)
        return error
    return True


async def crowd(address, rounds):
    """What requests of a tenant are told while 40 clients of another one ask again and again; and what these are.

    They ask for `rounds` rounds, or until one is refused.
    """
    over, full, heavy = asyncio.Event(), asyncio.Event(), []

    async def again(client, seed):
        while not over.is_set():
            heavy.append(await ask(client, "heavy", LONG, seed))
            if heavy[-1] is not True:
                full.set()

    async with AsyncClient(address) as client:
        clients = [asyncio.create_task(again(client, seed)) for seed in range(CROWD)]
        async with asyncio.timeout(240):
            await full.wait()
            light = []
            for _ in range(rounds):
                light += await asyncio.gather(*(ask(client, "light", SHORT, seed) for seed in range(FEW)))
                if any(answer is not True for answer in light):
                    break
            over.set()
            await asyncio.gather(*clients)
    return light, heavy


@pytest.mark.slow
def test_a_crowd_leaves_another_tenant_its_places(cluster):
    started, scheduling = cluster
    light, heavy = asyncio.run(crowd(started.gateway_grpc, 1 if scheduling == "fair" else MOST_ROUNDS))
    if scheduling == "fair":
        assert light == [True] * FEW
    else:
        assert any(isinstance(answer, ResourceExhaustedError) for answer in light)
    assert heavy.count(True) > 0
    assert all(answer.retry_after >= 1 for answer in heavy if answer is not True)
