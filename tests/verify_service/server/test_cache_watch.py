"""Who watches the cache knows it, whatever changes while it is being told, and however slowly it reads."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.prefix_hash import hash_prompt, prefix_salt
from slipstream.rpc.channel import open_channel
from slipstream.v1 import verify_pb2
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from support.served_verify import Client, served
from verify_service.kv_cache.cache_events import CacheEvents
from verify_service.server import cache_watch
from verify_service.server.cache_watch import CachedPages, CacheWatch


class Reader:
    """A client of a watch, as verify.proto describes it."""

    def __init__(self) -> None:
        self.known: set[int] = set()
        self.sequence = 0
        self.snapshots = 0

    def take(self, sequence: int, *, snapshot: bool, added: set[int], evicted: set[int]) -> None:
        assert sequence == self.sequence + 1
        self.sequence = sequence
        if snapshot:
            self.snapshots += 1
            self.known.clear()
        assert self.known.isdisjoint(added)
        assert self.known.issuperset(evicted)
        self.known = (self.known - evicted) | added


@given(data=st.data(), most=st.integers(1, 8))
@settings(max_examples=60)
def test_a_reader_ends_up_with_what_is_cached(data: st.DataObject, most: int) -> None:
    held, told = set[int](), False
    pages, reader = CachedPages(), Reader()
    watch = CacheWatch(pages)
    pages.apply(CacheEvents((99,), (98,)))  # late news of a time when nobody watched
    assert not watch.pending
    former = cache_watch.MAX_HASHES
    cache_watch.MAX_HASHES = most  # type: ignore[misc]  # messages small enough to be many
    try:
        for _ in range(data.draw(st.integers(0, 20))):
            toggled = data.draw(st.sets(st.integers(0, 30), max_size=10))
            events = CacheEvents(tuple(toggled - held), tuple(toggled & held))
            held ^= toggled
            if not told or data.draw(st.integers(0, 5)) == 0:
                events, told = CacheEvents(tuple(held), (), whole=True), True
            pages.apply(events)
            watch.note(events)
            for _ in range(data.draw(st.integers(0, 3))):
                read(watch, reader)
        while watch.pending:
            read(watch, reader)
    finally:
        cache_watch.MAX_HASHES = former  # type: ignore[misc]  # as above
    assert reader.known == held
    assert watch.take() is None


def read(watch: CacheWatch, reader: Reader) -> None:
    report = watch.take()
    if report is not None:
        added, evicted = set(report.added), set(report.evicted)
        assert len(added) <= cache_watch.MAX_HASHES
        reader.take(report.sequence, snapshot=report.snapshot, added=added, evicted=evicted)


class Watcher(Client):
    """A session that asks for the cache."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        super().__init__(channel)
        self.reader, self.evicted = Reader(), 0

    async def watch(self) -> None:
        await self.call.write(verify_pb2.SessionRequest(watch_cache=verify_pb2.WatchCache()))

    async def read(self) -> bool:
        message = await self.call.read()
        assert message is not grpc.aio.EOF
        for output in message.outputs:
            self.outputs.setdefault(output.request_id, []).append(output)
        if message.HasField("cache"):
            cache = message.cache
            self.evicted += len(cache.evicted)
            self.reader.take(
                cache.sequence, snapshot=cache.snapshot, added=set(cache.added), evicted=set(cache.evicted)
            )
        return True

    async def learn(self, count: int, *, snapshots: int = 1) -> None:
        """Read until so many pages are known, from so many snapshots."""
        async with asyncio.timeout(60):
            while self.reader.snapshots < snapshots or len(self.reader.known) != count:
                await self.read()


def test_a_session_is_told_of_the_cache_once_it_asks_and_never_before(tiny_model: Path) -> None:
    async def scenario() -> None:
        model = CausalLM.load(tiny_model, threads=1)
        async with served(model, num_pages=16) as service, open_channel(service.address) as channel:
            silent, asking, late = Client(channel), Watcher(channel), Watcher(channel)
            await asking.watch()
            for number in range(4):  # more than 16 pages hold, so that some are evicted
                prompt = [1 + (number * 31 + place) % 250 for place in range(70)]
                await asking.submit(number, prompt=prompt, max_tokens=20)
                await asking.finish(number)
            cached = service.loop.state().pages_cached
            assert cached > 8
            await asking.learn(cached)
            await late.watch()
            await late.learn(cached)
            assert asking.evicted > 0
            assert asking.reader.known == late.reader.known
            last = hash_prompt(prompt, 16).hashes
            assert {each ^ prefix_salt("", "") for each in last} <= late.reader.known
            assert asking.reader.snapshots == late.reader.snapshots == 1
            await asking.watch()
            await asking.learn(cached, snapshots=2)
            assert asking.reader.known == late.reader.known
            messages: list[verify_pb2.SessionResponse] = []
            await silent.submit(1, prompt=[9] * 40)
            while not any(output.finish_reason for message in messages for output in message.outputs):
                messages.append(await silent.call.read())
            assert not any(message.HasField("cache") for message in messages)

            asking.call.cancel()
            late.call.cancel()
            async with asyncio.timeout(60):
                while any(session.cache for session in service.verify.sessions):  # noqa: ASYNC110  # no event tells
                    await asyncio.sleep(0.01)
            await silent.submit(2, prompt=[8] * 40)
            await silent.finish(2)
            again = Watcher(channel)
            await again.watch()
            await again.learn(service.loop.state().pages_cached)
            assert {each ^ prefix_salt("", "") for each in hash_prompt([8] * 40, 16).hashes} <= again.reader.known

    asyncio.run(scenario())
