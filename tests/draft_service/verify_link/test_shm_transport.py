"""The draft service over shared memory, against the verify service's own end of the link."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from draft_service.proposers.base import Proposer, Target
from draft_service.protocol.codec import AttachGrant, Identity
from draft_service.verify_link.shm_transport import MAX_UNSENT, ShmExchange
from draft_service.verify_link.verify_link import VerifyLink
from draft_service.worker.worker import Worker
from slipstream.generation_types import FinishReason
from slipstream.rpc.errors import FailedPreconditionError, SlipstreamError
from slipstream.v1 import draft_pb2
from slipstream_kernels.draft_protocol.records import RingAddress, SharedMemoryAddress, Stamp, TreeReply
from slipstream_kernels.ipc.byte_ring import DATA_OFFSET, create_ring, reader, writer
from slipstream_kernels.ipc.segment import Segment, SegmentError
from slipstream_kernels.token_tree import TokenTree
from support.played_link import KEY, committed, opening, served, until
from tests.draft_service.verify_link.test_verify_link import REPEATING, Slow, ngram
from tests.draft_service.verify_peer import commit_command, open_command, stamp
from verify_service.draft_link.draft_link import DraftLink

NONCE = bytes(range(16))
CAPACITY = 1 << 14


@asynccontextmanager
async def linked(
    address: str, proposers: Sequence[Proposer], transports: Sequence[str] = ("shm", "grpc")
) -> AsyncIterator[tuple[VerifyLink, Worker]]:
    worker = Worker(proposers)
    worker.start()
    link = VerifyLink(address, worker, Identity("test", "127.0.0.1:1", 42, "0"), transports=transports)
    task = asyncio.create_task(link.run())
    try:
        yield link, worker
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        worker.stop()


async def draft_steps(verify: DraftLink, worker: Worker) -> None:
    """A few steps of a text that repeats itself, each with its tree."""
    await until(lambda: verify.known("ngram"))
    verify.begin(opening(proposer="ngram", tokens=tuple(REPEATING)))
    length, sent = len(REPEATING), worker.stats.trees_sent
    for token in (7, 8, 9):
        length += 1
        verify.commit([committed(length, token)])
        (tree,) = await asyncio.to_thread(verify.collect, (KEY,))
        assert tree is not None
        assert tree.token_ids[0] == {7: 8, 8: 9, 9: 5}[token]
    assert worker.stats.trees_sent == sent + 3
    verify.end(KEY, FinishReason.LENGTH)


def test_trees_come_through_shared_memory_and_the_transport_is_told() -> None:
    async def scenario() -> None:
        async with served(deadline=10.0) as (verify, address), linked(address, [ngram()]) as (link, worker):
            await draft_steps(verify, worker)
            assert (link.transport, link.transport_reason) == ("shm", "")
            (status,) = verify.proposers()
            assert status.attachment is not None and status.attachment.transport is not None
            assert status.attachment.transport.name == "shm"

    asyncio.run(scenario())


def test_leaving_and_coming_back() -> None:
    async def scenario() -> None:
        async with served(deadline=10.0) as (verify, address):
            for _ in range(3):
                async with linked(address, [ngram()]) as (_, worker):
                    await draft_steps(verify, worker)
                await until(lambda: not verify.known("ngram"))

    asyncio.run(scenario())


@pytest.mark.parametrize("transports", [("grpc",), ("grpc", "shm")])
def test_either_end_may_want_the_stream(transports: tuple[str, ...]) -> None:
    async def scenario() -> None:
        offered = ("shm", "grpc") if len(transports) == 1 else ("grpc", "shm")
        async with (
            served(deadline=10.0, transports=offered) as (verify, address),
            linked(address, [ngram()], transports) as (link, worker),
        ):
            await draft_steps(verify, worker)
            assert (link.transport, link.transport_reason) == ("grpc", "")

    asyncio.run(scenario())


def test_memory_that_cannot_be_opened_means_the_stream_and_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(path: str, _size: int) -> Segment:
        raise SegmentError(f"cannot open {path}: another namespace\n")

    async def scenario() -> None:
        monkeypatch.setattr(Segment, "open", elsewhere)
        async with served(deadline=10.0) as (verify, address), linked(address, [ngram()]) as (link, worker):
            await draft_steps(verify, worker)
            assert link.transport == "grpc"
            assert "another namespace" in link.transport_reason
            (status,) = verify.proposers()
            assert status.attachment is not None
            assert "another namespace?" in status.attachment.transport_reason

    asyncio.run(scenario())


def test_an_echo_that_does_not_arrive_means_the_stream_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the path names memory that the drafter can open but verify does not have."""

    async def scenario() -> None:
        async with served(deadline=10.0) as (verify, address), linked(address, [ngram()]) as (link, worker):
            await until(lambda: link.epoch is not None)
            await draft_steps(verify, worker)
            assert (link.transport, bool(link.transport_reason)) == ("grpc", True)

    monkeypatch.setattr(
        "verify_service.draft_link.transports.shm.reader", lambda _segment: reader(create_ring(CAPACITY, NONCE))
    )
    asyncio.run(scenario())


def rings() -> tuple[AttachGrant, Segment, Segment]:
    to_draft, to_verify = create_ring(CAPACITY, NONCE), create_ring(CAPACITY, NONCE)
    size = DATA_OFFSET + CAPACITY
    memory = SharedMemoryAddress(RingAddress(to_draft.path, size), RingAddress(to_verify.path, size), NONCE)
    return AttachGrant(1, 4, "shm", memory), to_draft, to_verify


def command_bytes(*commands: draft_pb2.DraftCommand) -> bytes:
    return draft_pb2.ExchangeResponse(commands=commands).SerializeToString()


def test_the_nonce_is_the_first_message() -> None:
    attachment, _, to_verify = rings()
    ShmExchange(attachment, _unexpected)
    assert reader(to_verify).read(100) == NONCE


def test_rings_that_cannot_be_opened_are_refused() -> None:
    attachment, _, _ = rings()
    assert attachment.shared_memory is not None
    memory = attachment.shared_memory
    for wrong in (
        None,
        SharedMemoryAddress(memory.to_draft, memory.to_verify, bytes(16)),
        SharedMemoryAddress(memory.to_draft, RingAddress("/dev/null", 8192), NONCE),
        SharedMemoryAddress(RingAddress(memory.to_draft.path, 2**40), memory.to_verify, NONCE),
    ):
        with pytest.raises(FailedPreconditionError):
            ShmExchange(AttachGrant(1, 4, "shm", wrong), _unexpected)


def _unexpected(error: SlipstreamError) -> None:
    raise AssertionError(error)


def scribbled(to_draft: Segment) -> None:
    struct.pack_into("<Q", to_draft.memory, 64, 2**50)


@pytest.mark.parametrize("harm", [scribbled, lambda to_draft: writer(to_draft).write(b"\xff\xff")])
def test_what_verify_must_not_write_ends_the_exchange_once(harm: Callable[[Segment], Any]) -> None:
    attachment, to_draft, _ = rings()
    errors: list[SlipstreamError] = []
    exchange = ShmExchange(attachment, errors.append)
    harm(to_draft)
    for _ in range(3):
        assert exchange.receive() == []
        exchange.send([TreeReply(Stamp(1, 0, 1, 1, 1), TokenTree((1,), (-1,)))])
    assert len(errors) == 1


def test_replies_wait_for_room_and_old_trees_make_way() -> None:
    attachment, _, to_verify = rings()
    exchange, into = ShmExchange(attachment, _unexpected), reader(to_verify)
    tree = TokenTree.chain(range(40))
    total = 3 * MAX_UNSENT
    for number in range(total):
        exchange.send([TreeReply(Stamp(1, number, 1, 1, 1), tree)])
    assert into.read(100) == NONCE
    slots: list[int] = []
    while True:
        exchange.receive()
        data = into.read(1 << 20)
        if data is None:
            break
        message = draft_pb2.ExchangeRequest.FromString(data)
        assert len(message.replies) <= attachment.replies_per_message
        slots.extend(reply.tree.stamp.slot for reply in message.replies)
    assert slots == sorted(slots)
    assert slots[-1] == total - 1
    assert MAX_UNSENT < len(slots) < total


def test_the_tree_of_a_state_superseded_while_it_was_drafted_is_told_all_the_same() -> None:
    attachment, to_draft, to_verify = rings()
    slow, out, into = Slow(), writer(to_draft), reader(to_verify)
    exchange = ShmExchange(attachment, _unexpected)
    worker = Worker([slow])
    worker.start()
    worker.bind(Target(1000, "", 64)).result(timeout=20)
    worker.attach(attachment, [slow], exchange.send, exchange)
    try:
        out.write(command_bytes(open_command(stamp(1, 0, 1, [10]), [10])))
        assert slow.begun.wait(20)
        for last in (11, 12, 13):
            text = list(range(10, last + 1))
            out.write(command_bytes(commit_command(stamp(1, 0, 1, text), [last])))
        slow.leave.release(2)
        trees: list[tuple[int, list[int]]] = []
        assert into.read(100) == NONCE
        limit = time.monotonic() + 20
        while len(trees) < 2 and time.monotonic() < limit:
            into.wait(0.1)
            while (data := into.read(1 << 20)) is not None:
                replies = draft_pb2.ExchangeRequest.FromString(data).replies
                trees.extend((reply.tree.stamp.base_length, list(reply.tree.token_ids)) for reply in replies)
        assert trees == [(1, [10]), (4, [13])]
    finally:
        worker.stop()
