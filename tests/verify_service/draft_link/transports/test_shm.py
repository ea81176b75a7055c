"""The exchange through shared memory: how it is agreed on, and that a drafter that scribbles harms itself alone."""

from __future__ import annotations

import asyncio
import os
import struct
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from slipstream.rpc.channel import from_rpc_error, open_channel
from slipstream.rpc.errors import FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError
from slipstream.v1 import draft_pb2, draft_pb2_grpc, tree_pb2
from slipstream_kernels.draft_protocol.tree_wire import TreeReader
from slipstream_kernels.ipc.byte_ring import DATA_OFFSET, open_ring, writer
from slipstream_kernels.ipc.segment import Segment, SegmentError
from slipstream_kernels.token_tree import TokenTree
from support import drafters
from support.drafters import WireDrafter, attach_request, shake_hands, tree_reply, wire_drafter
from support.played_link import FACTS, KEY, OTHER, chains, collect, committed, opening, run, served, until
from support.shared_memory import rings_of
from verify_service.draft_link.attachment import MAX_ATTACHMENTS
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.link_config import LinkConfig
from verify_service.draft_link.records import AttachRequest, Offer
from verify_service.draft_link.transports.shm import SharedRings, ShmTransport


@pytest.fixture(autouse=True)
def transport(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafters, "TRANSPORT", "shm")


@asynccontextmanager
async def attached(address: str, *, both: bool = True) -> AsyncIterator[tuple[Any, draft_pb2.AttachResponse]]:
    """An attachment whose exchange has not begun."""
    async with open_channel(address) as channel:
        stub = draft_pb2_grpc.DraftLinkServiceStub(channel)
        names = ["shm", "grpc"] if both else ["shm"]
        yield stub, await stub.Attach(await attach_request(stub, "p", transports=names), timeout=60)


def exchange(stub: Any, epoch: int, **metadata: str) -> Any:
    named = [(f"slipstream-{key.replace('_', '-')}", value) for key, value in metadata.items()]
    return stub.Exchange(metadata=(("slipstream-epoch", str(epoch)), *named))


async def failure(call: Any) -> BaseException:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    return from_rpc_error(caught.value)


def test_the_operators_order_decides_and_grpc_needs_no_memory() -> None:
    async def scenario() -> None:
        for order in (("shm", "grpc"), ("grpc", "shm")):
            async with served(transports=order) as (_, address), attached(address) as (stub, answer):
                info = await stub.GetInfo(draft_pb2.DraftLinkServiceGetInfoRequest())
                assert tuple(info.transports) == order
                assert answer.transport == order[0]
                assert answer.HasField("shared_memory")
        async with served(transports=("grpc",)) as (_, address), attached(address) as (_, answer):
            assert answer.transport == "grpc"
            assert not answer.HasField("shared_memory")

    run(scenario())


def test_a_drafter_that_cannot_open_it_takes_the_next_transport_and_says_why() -> None:
    async def scenario() -> None:
        async with served() as (link, address), attached(address) as (stub, answer):
            call = exchange(stub, answer.epoch, transport="grpc", transport_reason="shm: another host")
            await call.initial_metadata()
            (status,) = link.proposers()
            assert status.attachment is not None and status.attachment.transport is not None
            assert status.attachment.transport.name == "grpc"
            assert status.attachment.transport_reason == "shm: another host"
            link.begin(opening())
            message = await call.read()
            assert message.commands[0].open.stamp.epoch == answer.epoch
            with pytest.raises(SegmentError):
                Segment.open(answer.shared_memory.to_draft.path, answer.shared_memory.to_draft.size)

    run(scenario())


def test_without_the_nonces_echo_it_is_refused_and_another_transport_may_follow() -> None:
    async def scenario() -> None:
        async with served() as (link, address), attached(address) as (stub, answer):
            assert isinstance(await failure(exchange(stub, answer.epoch)), FailedPreconditionError)
            assert isinstance(await failure(exchange(stub, answer.epoch, transport="pigeon")), FailedPreconditionError)
            assert not link.known("p")
            call = exchange(stub, answer.epoch, transport="grpc", transport_reason="verify did not see the echo")
            await call.initial_metadata()
            assert link.known("p")
        async with served() as (link, address), attached(address) as (stub, answer):
            memory = answer.shared_memory
            out = writer(open_ring(memory.to_verify.path, memory.to_verify.size, memory.nonce))
            out.write(bytes(16))
            assert isinstance(await failure(exchange(stub, answer.epoch)), FailedPreconditionError)
            assert not link.known("p")

    run(scenario())


def test_nobody_opens_the_rings_once_the_exchange_has_begun_and_nothing_is_left_at_the_end() -> None:
    async def scenario() -> None:
        before = rings_of()
        async with (
            served(open_seconds=2.0) as (link, address),
            attached(address) as (stub, answer),
            attached(address),  # its exchange is never opened
        ):
            shake_hands(answer)
            call = exchange(stub, answer.epoch)
            await call.initial_metadata()
            for ring in (answer.shared_memory.to_draft, answer.shared_memory.to_verify):
                with pytest.raises(SegmentError):
                    Segment.open(ring.path, ring.size)
            held = rings_of()
            assert held > before
            await until(lambda: rings_of() < held)
            assert link.state().attachments == 1
            call.cancel()
            await until(lambda: link.state().attachments == 0)
            await until(lambda: rings_of() == before)

    run(scenario())


def test_without_memory_the_stream_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_size: int) -> Segment:
        raise SegmentError("no space")

    async def scenario() -> None:
        monkeypatch.setattr(Segment, "create", full)
        async with served() as (_, address):
            async with attached(address) as (_, answer):
                assert answer.transport == "grpc"
                assert not answer.HasField("shared_memory")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async with attached(address, both=False):
                    pass
            assert isinstance(from_rpc_error(caught.value), ResourceExhaustedError)

    run(scenario())


def test_one_that_is_refused_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    create = Segment.create

    def counted(size: int) -> Segment:
        sizes.append(size)
        return create(size)

    async def scenario() -> None:
        monkeypatch.setattr(Segment, "create", counted)
        async with served() as (link, address), attached(address) as (stub, _):
            request = await attach_request(stub, "p", transports=["shm"])
            for _ in range(MAX_ATTACHMENTS - 1):
                await stub.Attach(request, timeout=60)
            taken = len(sizes)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Attach(request, timeout=60)
            assert isinstance(from_rpc_error(caught.value), ResourceExhaustedError)
            assert len(sizes) == taken
            assert link.state().attachments == 0

    run(scenario())


def test_a_drafter_that_does_not_read_loses_its_feed_and_gets_it_back() -> None:
    async def scenario() -> None:
        async with served(outbox_limit=2000) as (link, address), attached(address) as (stub, answer):
            into, out = shake_hands(answer)
            call = exchange(stub, answer.epoch)
            await call.initial_metadata()
            link.begin(opening())
            length = 3
            while link.state().gaps == 0:
                length += 500
                link.commit([committed(length, *range(99), *(7,) * 401)])
                assert length < 50_000_000
            link.commit([committed(length + 1, 8)])
            length += 1
            gap = None
            async with asyncio.timeout(60):
                while gap is None:
                    while (data := into.read(1 << 24)) is not None:
                        commands = draft_pb2.ExchangeResponse.FromString(data).commands
                        gap = next((c.gap for c in commands if c.WhichOneof("kind") == "gap"), gap)
                    await asyncio.sleep(0.005)
            assert gap.dropped >= 1
            resume = draft_pb2.DraftReply(resume=draft_pb2.Resume(stamp=gap.stamp))
            out.write(draft_pb2.ExchangeRequest(replies=[resume]).SerializeToString())
            await until(lambda: into.filled)
            data = into.read(1 << 24)
            assert data is not None
            opened = draft_pb2.ExchangeResponse.FromString(data).commands[0].open
            assert len(opened.token_ids) == opened.stamp.base_length == length

    run(scenario())


def poke(drafter: WireDrafter, ring: int, offset: int, value: int) -> None:
    assert drafter.rings is not None
    struct.pack_into("<Q", drafter.rings[ring].segment.memory, offset, value)


def garbage(drafter: WireDrafter) -> None:
    assert drafter.rings is not None
    drafter.rings[1].write(b"\xff" * 20)


SCRIBBLES = {
    "written beyond the ring": lambda drafter: poke(drafter, 1, 64, 2**40),
    "written far back": lambda drafter: poke(drafter, 1, 64, 0),
    "written in mid-air": lambda drafter: poke(drafter, 1, 64, 2**64 - 1),
    "read beyond what was written": lambda drafter: poke(drafter, 0, 128, 2**40),
    "bytes that are no message": garbage,
}


@pytest.mark.parametrize("kind", SCRIBBLES)
def test_scribbles_cost_the_sender_its_attachment_and_nobody_else(kind: str) -> None:
    def scribble(drafter: WireDrafter, record_kind: str, _record: Any) -> list[draft_pb2.DraftReply]:
        if record_kind == "commit":
            SCRIBBLES[kind](drafter)
        return []

    async def scenario() -> None:
        async with (
            served(deadline=1.0) as (link, address),
            wire_drafter(address, "good", answer=chains),
            wire_drafter(address, "p", answer=scribble) as bad,
        ):
            link.begin(opening())
            link.begin(opening(OTHER, "good"))
            for step in range(3):
                link.commit([committed(4 + step, 10), committed(4 + step, 20 + step, key=OTHER)])
                trees, _ = await collect(link, KEY, OTHER)
                assert trees == [None, TokenTree((21 + step, 22 + step), (-1, 0))]
            await until(lambda: bad.error is not None)
            assert isinstance(from_rpc_error(bad.error), InvalidArgumentError)
            assert (link.state().attachments, link.state().malformed) == (1, 1)

    run(scenario())


def test_scribbles_where_verify_does_not_read_change_nothing() -> None:
    async def scenario() -> None:
        async with served() as (link, address), wire_drafter(address, "p", answer=chains) as drafter:
            assert drafter.rings is not None
            link.begin(opening())
            into, out = (ring.segment.memory for ring in drafter.rings)
            for step in range(4):
                await drafter.wait_for("open", *["commit"] * step)
                into[:64], out[:64] = bytes(64), bytes(64)
                into[DATA_OFFSET:] = b"\xff" * (len(into) - DATA_OFFSET)
                link.commit([committed(4 + step, 10 + step)])
                assert (await collect(link))[0] == [TokenTree((11 + step, 12 + step), (-1, 0))]

    run(scenario())


def test_a_flood_ends_by_itself() -> None:
    async def scenario() -> None:
        async with served(num_slots=4) as (link, address), wire_drafter(address, "p") as drafter:
            link.begin(opening())
            link.commit([committed(4, 10)])
            _, commit = await drafter.wait_for("open", "commit")
            for _ in range(1000):
                await drafter.send(tree_reply(commit.stamp, [5]))
                if drafter.error is not None:
                    break
            await until(lambda: drafter.error is not None)
            assert isinstance(from_rpc_error(drafter.error), InvalidArgumentError)
            assert link.collect([KEY]) == [None]

    run(scenario())


def test_resume_and_nack_are_taken_in_between_steps() -> None:
    async def scenario() -> None:
        async with served() as (link, address), wire_drafter(address, "p") as drafter:
            link.begin(opening())
            (opened,) = await drafter.wait_for("open")
            await drafter.send(draft_pb2.DraftReply(resume=draft_pb2.Resume(stamp=opened.stamp)))
            _, again = await drafter.wait_for("open", "open")
            assert again.stamp.generation == opened.stamp.generation + 1
            await drafter.send(draft_pb2.DraftReply(nack=draft_pb2.Nack(stamp=again.stamp)))
            await until(lambda: not link.expects([KEY]))

    run(scenario())


def test_a_step_does_not_wait_for_a_tree_that_the_service_takes_in_as_the_wait_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The exchange's task looks at the ring too; what it finds there ends no sleep that begins afterwards."""
    original = ShmTransport.wait

    def wait_late(self: ShmTransport, seconds: float, position: int) -> None:
        assert drafted.write(draft_pb2.ExchangeRequest(replies=[reply]).SerializeToString())
        link.tend(attachment)
        original(self, seconds, position)

    waits: list[float] = []
    link = DraftLink(FACTS, LinkConfig(deadline=120.0, transports=("shm",)), on_wait=waits.append)
    offers = (Offer("p", 8, 4),)
    request = AttachRequest(1, 1, "", offers, "tokenizer", 100, ("shm",), "d", "", os.getpid())
    answer = link.attach(request, loopback=True)
    memory = answer.shared_memory
    assert memory is not None
    drafted = writer(open_ring(memory.to_verify.path, memory.to_verify.size, memory.nonce))
    assert drafted.write(memory.nonce)
    attachment = link.start(answer.epoch, lambda: None, "shm")
    link.begin(opening())
    link.commit([committed(4, 7)])
    stamp = tree_pb2.Stamp(epoch=answer.epoch, slot=0, generation=1, base_length=4, root_token=7)
    reply = tree_reply(stamp, [5, 6])
    monkeypatch.setattr(ShmTransport, "wait", wait_late)
    assert link.collect([KEY]) == [TokenTree((5, 6), (-1, 0))]
    assert waits[0] < 60.0
    link.close()


def test_the_rings_stay_mapped_until_they_are_released_and_then_go_at_once() -> None:
    before, rings = rings_of(), SharedRings(2, 64)
    opened = open_ring(rings.address.to_verify.path, rings.address.to_verify.size, rings.nonce)
    writer(opened).write(rings.nonce)
    transport = ShmTransport(rings, 2, lambda: None, TreeReader())
    held = rings_of()
    del rings
    transport.close()
    assert rings_of() == held
    assert transport.receive() == []
    transport.wait(60.0, transport.position)
    waiting = threading.Thread(target=transport.wait, args=(0.05, transport.position))
    waiting.start()
    transport.release()
    waiting.join()
    del opened
    assert rings_of() == before
