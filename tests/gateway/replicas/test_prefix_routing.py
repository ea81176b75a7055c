"""Real verify services tell what they have cached, and requests go there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from gateway.core.request import ChoiceRequest, Sampling, StepOutput
from gateway.replicas.replica import Replica
from gateway.replicas.replica_load import SHORT_HITS
from gateway.replicas.resumable_stream import ResumableStream
from gateway.replicas.routing import LeastLoaded, Prefix, RoutingPolicy
from gateway.replicas.verify_client import VerifyClient
from slipstream.prefix_hash import hash_prompt, prefix_salt
from slipstream.rpc.errors import UnavailableError
from slipstream.v1 import verify_pb2
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from support.served_verify import Served, served


class Asker:
    """Sends requests through a client that knows all services."""

    def __init__(self, client: VerifyClient, services: list[Served]) -> None:
        self.client = client
        self.services = services

    async def ask(self, prompt: list[int], tenant: str = "t", choices: int = 1) -> tuple[str, list[int], int]:
        """Where a request went, its first choice's tokens, and cached tokens of its prompt, once all have ended."""
        tokens: list[int] = []
        cached: list[int] = []
        places: list[str] = []
        ended = [asyncio.Event() for _ in range(choices)]

        def deliver(index: int, output: StepOutput) -> None:
            if index == 0:
                tokens.extend(output.token_ids)
                if output.cached_tokens is not None:
                    cached.append(output.cached_tokens)
            if output.finish_reason is not None:
                assert output.error is None
                ended[index].set()

        sampling = Sampling(temperature=1.0, seed=4, max_tokens=4, ignore_eos=True)
        streams = [
            ResumableStream(ChoiceRequest(prompt, sampling, tenant=tenant, choice_index=index), partial(deliver, index))
            for index in range(choices)
        ]
        self.client.submit(streams)
        places = [stream.replica.address for stream in streams if stream.replica is not None]
        async with asyncio.timeout(60):
            for each in ended:
                await each.wait()
        assert len(set(places)) == 1
        return places[0], tokens, cached[0]

    async def settle(self, known: int) -> None:
        """Wait until so many prefixes are known to be cached anywhere."""
        async with asyncio.timeout(60):
            while sum(len(each.routing.prefixes) for each in self.client.replicas) != known:  # noqa: ASYNC110  # no event tells
                await asyncio.sleep(0.01)

    def replica(self, address: str) -> Replica:
        return next(each for each in self.client.replicas if each.address == address)


@asynccontextmanager
async def asker(
    model: Path, policy: RoutingPolicy, count: int = 2, *, prefix_cache: bool = True
) -> AsyncIterator[Asker]:
    async with AsyncExitStack() as stack:
        target = CausalLM.load(model, threads=1)
        services = [
            await stack.enter_async_context(served(target, num_pages=64, prefix_cache=prefix_cache))
            for _ in range(count)
        ]
        client = VerifyClient([each.address for each in services], timeout=5.0, resume_seconds=60.0, policy=policy)
        await client.start()
        async with asyncio.timeout(60):
            while sum(each.ready for each in client.replicas) < count:  # noqa: ASYNC110  # no event tells
                await asyncio.sleep(0.01)
        try:
            yield Asker(client, services)
        finally:
            await client.close()


def prompt(first: int, length: int) -> list[int]:
    return [3 + (first * 37 + place * 11) % 240 for place in range(length)]


def test_requests_follow_their_prefix_within_their_tenant(tiny_model: Path) -> None:
    async def scenario() -> None:
        async with asker(tiny_model, Prefix()) as one:
            first = await one.ask(prompt(1, 40))
            await one.settle(2)
            second = await one.ask(prompt(2, 40))
            await one.settle(4)
            assert first[0] != second[0]
            assert (first[2], second[2]) == (0, 0)
            for _ in range(2):  # whichever was used last
                assert (await one.ask([*prompt(1, 33), 7, 8], choices=2))[::2] == (first[0], 32)
                assert (await one.ask([*prompt(2, 33), 7, 8]))[::2] == (second[0], 32)
            elsewhere = await one.ask(prompt(2, 40), tenant="another")
            assert elsewhere[0] == first[0]  # the least recently used one
            assert elsewhere[1:] == (second[1], 0)
            loads = [each.routing for each in one.client.replicas]
            assert sum(load.hit_tokens for load in loads) == 4 * 32
            assert sum(load.sent for load in loads) == 9
            assert [load.queued_tokens for load in loads] == [0, 0]

    asyncio.run(scenario())


def test_lost_news_are_asked_for_again_and_lies_change_no_token(tiny_model: Path) -> None:
    async def scenario() -> None:
        async with asker(tiny_model, Prefix()) as one:
            truth = await one.ask(prompt(1, 40))
            await one.settle(2)
            liar = next(each for each in one.client.replicas if each.address != truth[0])
            honest = one.replica(truth[0])
            names = list(honest.routing.prefixes.names)
            honest.take(verify_pb2.SessionResponse(cache=verify_pb2.CacheEvents(sequence=99, evicted=names)))
            assert honest.routing.gaps == 1
            assert len(honest.routing.prefixes) == 0
            await one.settle(2)
            assert sorted(honest.routing.prefixes.names) == sorted(names)

            sequence = 1 + liar.routing.prefixes.sequence
            honest.take(verify_pb2.SessionResponse(cache=verify_pb2.CacheEvents(sequence=1, snapshot=True)))
            liar.take(verify_pb2.SessionResponse(cache=verify_pb2.CacheEvents(sequence=sequence, added=names)))
            deceived = await one.ask(prompt(1, 40))
            assert deceived == (liar.address, truth[1], 0)

    asyncio.run(scenario())


def test_a_service_whose_news_stop_draws_requests_by_them_no_longer(tiny_model: Path) -> None:
    async def scenario() -> None:
        async with asker(tiny_model, Prefix()) as one:
            silent = one.client.replicas[0]
            async with asyncio.timeout(60):
                while silent.routing.prefixes.sequence is None:  # noqa: ASYNC110  # no event tells
                    await asyncio.sleep(0.01)
            (session,) = next(each for each in one.services if each.address == silent.address).verify.sessions
            session.cache = None  # from now on it tells nothing, until it is asked for a snapshot
            hashes = hash_prompt(prompt(1, 40), silent.page_size).hashes
            tenants = ["stale", *(f"t{number}" for number in range(SHORT_HITS))]
            told = [name ^ prefix_salt(tenant, "") for tenant in tenants for name in hashes]
            sequence = 1 + silent.routing.prefixes.sequence
            silent.take(verify_pb2.SessionResponse(cache=verify_pb2.CacheEvents(sequence=sequence, added=told)))
            for tenant in tenants[1:]:
                assert (await one.ask(prompt(1, 40), tenant=tenant))[::2] == (silent.address, 0)
            assert silent.routing.gaps == 1
            await one.settle(len(hashes) * SHORT_HITS)  # what those left there is true now
            assert silent.routing.prefixes.names.isdisjoint(told[: len(hashes)])

    asyncio.run(scenario())


def test_a_service_without_a_prefix_cache_expects_nothing_there(tiny_model: Path) -> None:
    async def scenario() -> None:
        async with asker(tiny_model, Prefix(), prefix_cache=False) as one:
            assert [each.page_size for each in one.client.replicas] == [0, 0]
            await one.ask(prompt(1, 40))
            assert not any(session.cache for each in one.services for session in each.verify.sessions)

    asyncio.run(scenario())


def test_a_session_that_breaks_leaves_nothing_known_and_is_watched_again(tiny_model: Path) -> None:
    async def scenario() -> None:
        async with asker(tiny_model, Prefix()) as one:
            place, *_ = await one.ask(prompt(1, 40))
            await one.settle(2)
            former = one.replica(place).info
            (session,) = next(each for each in one.services if each.address == place).verify.sessions
            session.end(UnavailableError("over"))
            async with asyncio.timeout(60):
                while one.replica(place).info is former:  # noqa: ASYNC110  # no event tells
                    await asyncio.sleep(0.01)
                assert len(one.replica(place).routing.prefixes) == 0
                await one.settle(2)
            assert (await one.ask(prompt(1, 40)))[::2] == (place, 32)
            assert one.replica(place).routing.sent == 2

    asyncio.run(scenario())


def test_nobody_is_watched_where_caches_do_not_decide(tiny_model: Path) -> None:
    async def scenario(policy: RoutingPolicy, count: int) -> None:
        async with asker(tiny_model, policy, count) as one:
            await one.ask(prompt(1, 40))
            await one.ask(prompt(1, 40))
            assert not any(each.info is not None and each.info.watched for each in one.client.replicas)
            assert not any(session.cache for each in one.services for session in each.verify.sessions)

    asyncio.run(scenario(LeastLoaded(), 2))
    asyncio.run(scenario(Prefix(), 1))
