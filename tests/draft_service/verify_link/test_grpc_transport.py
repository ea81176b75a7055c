"""Transport `grpc` where both ends stay awake: a draft service behind a link that the test plays the verify loop on."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import pytest

from draft_service.proposers.base import DraftRequest, Proposer
from draft_service.proposers.ngram.ngram import NgramConfig, NgramProposer
from draft_service.protocol.codec import GRPC, Identity
from draft_service.verify_link import verify_link
from draft_service.verify_link.grpc_transport import GrpcRecordSource
from draft_service.verify_link.reply_queue import ReplyQueue
from draft_service.verify_link.verify_link import VerifyLink
from draft_service.worker.worker import Worker
from slipstream.generation_types import FinishReason
from slipstream_kernels.draft_protocol.records import Commit, Gap, Stamp, TrafficWeight
from slipstream_kernels.token_tree import TokenTree
from support.played_link import KEY, collect, committed, opening, run, served, until
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.transports import negotiation

TEXT = (5, 6, 7, 8) * 4
AT = Stamp(1, 2, 3, 4, 5)


class Holding(NgramProposer):
    """Answers once it is released."""

    def __init__(self, name: str, config: NgramConfig) -> None:
        super().__init__(name, config)
        self.asked, self.released = threading.Event(), threading.Event()

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        self.asked.set()
        self.released.wait(60.0)
        return super().propose(requests)


@pytest.fixture(autouse=True)
def _few_cpus_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_link, "AWAKE_CPUS", 1)
    monkeypatch.setattr(negotiation, "AWAKE_CPUS", 1)


@asynccontextmanager
async def linked(address: str, spin: float, proposer: Proposer | None = None) -> AsyncIterator[VerifyLink]:
    worker = Worker([proposer or NgramProposer("p", NgramConfig(trust=8))])
    worker.start()
    identity = Identity("test", "127.0.0.1:1", os.getpid(), "0")
    link = VerifyLink(address, worker, identity, transports=(GRPC,), spin=spin)
    task = asyncio.create_task(link.run())
    try:
        await until(lambda: link.epoch is not None)
        yield link
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await asyncio.to_thread(worker.stop)


async def rounds(link: DraftLink, count: int) -> None:
    """Steps of one request, each with a tree."""
    link.begin(opening(tokens=TEXT))
    for step in range(count):
        token = TEXT[step % 4]
        await asyncio.to_thread(link.commit, [committed(len(TEXT) + step + 1, token)])
        (tree,), _ = await collect(link)
        assert tree is not None
        assert tree.token_ids[0] == TEXT[(step + 1) % 4]
    link.end(KEY, FinishReason.STOP)


@pytest.mark.parametrize("spin", [0.01, 0.0003])
def test_every_step_gets_its_tree(spin: float) -> None:
    async def scenario() -> None:
        async with served(spin=spin, transports=(GRPC,)) as (link, address), linked(address, spin):
            await until(lambda: link.known("p"))
            await rounds(link, 8)
            assert link.state().misses == 0
            await asyncio.sleep(3 * spin)  # and once all threads sleep
            await rounds(link, 2)

    run(scenario())


def test_a_step_that_waits_awake_hears_that_the_exchange_is_over() -> None:
    async def scenario() -> None:
        async with served(spin=60.0, deadline=60.0, transports=(GRPC,)) as (link, address):
            holding = Holding("p", NgramConfig(trust=8))
            async with linked(address, 0.01, holding):
                await until(lambda: link.known("p"))
                link.begin(opening(tokens=TEXT))
                link.commit([committed(len(TEXT) + 1, TEXT[0])])
                collected = asyncio.create_task(collect(link))
                await until(holding.asked.is_set)
                link.close()
                assert (await collected)[0] == [None]
                holding.released.set()

    run(scenario())


def test_records_are_handed_over_in_order_and_end_a_wait() -> None:
    feed = GrpcRecordSource(0.0005)
    feed.put([Gap(AT, 1)])
    feed.wake()
    feed.put([Commit(AT, (1,), 1, 1)])
    feed.wait(60.0)
    assert feed.receive() == [Gap(AT, 1), Commit(AT, (1,), 1, 1)]
    assert feed.receive() == []
    timer = threading.Timer(0.05, feed.wake)
    timer.start()
    feed.wait(60.0)
    timer.join()


def test_looking_out_ends_with_the_next_message_or_reply() -> None:
    async def scenario() -> None:
        feed, outbox = GrpcRecordSource(60.0), ReplyQueue(4)
        looking = asyncio.create_task(feed.poll(outbox))
        await asyncio.sleep(0.01)
        assert not looking.done()
        feed.put([Gap(AT, 1)])
        await looking
        looking = asyncio.create_task(feed.poll(outbox))
        await asyncio.sleep(0)
        outbox.put([TrafficWeight(0.5)])
        await looking
        await GrpcRecordSource(0.0).poll(ReplyQueue(4))

    run(scenario())
