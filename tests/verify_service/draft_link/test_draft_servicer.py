"""Calls of draft services: which attach, when an exchange opens, and which peers count as this host's own."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import grpc
import pytest

from slipstream.rpc.channel import from_rpc_error, open_channel
from slipstream.rpc.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    SlipstreamError,
    UnauthenticatedError,
    UnavailableError,
)
from slipstream.rpc.server import GrpcServer
from slipstream.v1 import draft_pb2, draft_pb2_grpc
from support.drafters import attach_request, wire_drafter
from support.played_link import run, served, until
from verify_service.draft_link.attachment import MAX_ATTACHMENTS
from verify_service.draft_link.draft_servicer import SERVICE, DraftLinkServicer, _on_loopback


@pytest.mark.parametrize(
    ("peer", "own"),
    [
        ("ipv4:127.0.0.1:4711", True),
        ("ipv4:127.8.8.8:1", True),
        ("ipv6:[::1]:4711", True),
        ("ipv6:%5B::1%5D:4711", True),
        ("ipv6:[::ffff:127.0.0.1]:4711", True),
        ("unix:/run/slipstream", True),
        ("ipv4:10.0.0.1:127", False),
        ("ipv4:1.127.0.1:1", False),
        ("ipv6:[2001:db8::1]:1", False),
        ("", False),
    ],
)
def test_loopback(peer: str, own: bool) -> None:
    assert _on_loopback(peer) is own


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"min_version": 2, "max_version": 9}, FailedPreconditionError),
        ({"tokenizer_fingerprint": "other"}, FailedPreconditionError),
        ({"vocab_size": 99}, FailedPreconditionError),
        ({"transports": ["cuda_ipc"]}, FailedPreconditionError),
        ({"proposers": []}, InvalidArgumentError),
        ({"name": "n" * 1000}, InvalidArgumentError),
        ({"token": "wrong"}, UnauthenticatedError),
    ],
)
def test_attach_refuses_what_does_not_fit(fields: dict[str, Any], error: type[SlipstreamError]) -> None:
    async def scenario() -> None:
        async with served(attach_token="secret") as (_, address), open_channel(address) as channel:
            stub = draft_pb2_grpc.DraftLinkServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Attach(await attach_request(stub, "p", **fields))
            assert isinstance(from_rpc_error(caught.value), error)

    run(scenario())


def test_operators_are_told_of_refusals_and_misfits() -> None:
    async def scenario() -> None:
        async with served() as (link, address), open_channel(address) as channel:
            stub = draft_pb2_grpc.DraftLinkServiceStub(channel)
            unfit = [draft_pb2.UnfitProposer(name="head", reason="hidden_size 8, the target's is 128")]
            for fields in ({"proposers": [], "unfit": unfit}, {"vocab_size": 99}):
                with pytest.raises(grpc.aio.AioRpcError):
                    await stub.Attach(await attach_request(stub, "p", address="host:1", **fields))
                (told,) = link.refusals()
                assert told.proposer == ("head" if "unfit" in fields else "p")
                assert ("hidden_size 8" in told.reason) == ("unfit" in fields)
            async with wire_drafter(address, "p", unfit=unfit):
                assert sorted(each.proposer for each in link.refusals()) == ["head", "p"]
                assert link.state().refused == 2
            await until(lambda: [each.proposer for each in link.refusals()] == ["p"])

    run(scenario())


def test_attachments_are_limited_opened_once_and_end_with_the_service() -> None:
    async def scenario() -> None:
        async with served(open_seconds=600.0) as (link, address), open_channel(address) as channel:
            stub = draft_pb2_grpc.DraftLinkServiceStub(channel)
            request = await attach_request(stub, "p", transports=["grpc"])
            epochs = [(await stub.Attach(request)).epoch for _ in range(MAX_ATTACHMENTS)]
            assert not link.known("p")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Attach(request)
            assert isinstance(from_rpc_error(caught.value), ResourceExhaustedError)
            call = stub.Exchange(metadata=(("slipstream-epoch", str(epochs[0])),))
            await call.initial_metadata()
            assert link.known("p")
            for epoch, expected in ((epochs[0], FailedPreconditionError), (0, NotFoundError)):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.Exchange(metadata=(("slipstream-epoch", str(epoch)),)).read()
                assert isinstance(from_rpc_error(caught.value), expected)
            link.close()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert isinstance(from_rpc_error(caught.value), UnavailableError)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Attach(request)
            assert isinstance(from_rpc_error(caught.value), UnavailableError)

    run(scenario())


@pytest.mark.parametrize(("said", "seen"), [("0.0.0.0:4711", "127.0.0.1:4711"), ("draft:4711", "draft:4711")])
def test_operators_see_where_a_draft_service_can_be_dialled(said: str, seen: str) -> None:
    async def scenario() -> None:
        async with served() as (link, address), open_channel(address) as channel:
            stub = draft_pb2_grpc.DraftLinkServiceStub(channel)
            attached = await stub.Attach(await attach_request(stub, "p", transports=["grpc"], address=said))
            call = stub.Exchange(metadata=(("slipstream-epoch", str(attached.epoch)),))
            await call.initial_metadata()
            assert [drafter.address for drafter in link.state().drafters] == [seen]

    run(scenario())


def test_an_attachment_that_is_not_opened_expires() -> None:
    async def scenario() -> None:
        async with served(open_seconds=0.05) as (_, address), open_channel(address) as channel:
            stub = draft_pb2_grpc.DraftLinkServiceStub(channel)
            request = await attach_request(stub, "p", transports=["grpc"])
            attached = [await stub.Attach(request) for _ in range(MAX_ATTACHMENTS)][-1]
            await asyncio.sleep(0.1)  # timers of one loop go off in order
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Exchange(metadata=(("slipstream-epoch", str(attached.epoch)),)).read()
            assert isinstance(from_rpc_error(caught.value), NotFoundError)
            await stub.Attach(request)  # they take nobody's place

    run(scenario())


def test_one_drafters_epoch_tells_nothing_of_anothers() -> None:
    async def scenario() -> None:
        async with served() as (_, address), open_channel(address) as channel:
            stub = draft_pb2_grpc.DraftLinkServiceStub(channel)
            request = await attach_request(stub, "p", transports=["grpc"])
            epochs = [(await stub.Attach(request)).epoch for _ in range(9)]
            gaps = [later - earlier for earlier, later in pairwise(epochs)]
            assert min(gaps) > 0
            assert len({gap >> 16 for gap in gaps}) > 4

    run(scenario())


@pytest.mark.parametrize("epoch", [None, "x", "-1", "9" * 5000])
def test_an_exchange_without_an_epoch_is_refused(epoch: str | None) -> None:
    async def scenario() -> None:
        async with served() as (_, address), open_channel(address) as channel:
            metadata = () if epoch is None else (("slipstream-epoch", epoch),)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await draft_pb2_grpc.DraftLinkServiceStub(channel).Exchange(metadata=metadata).read()
            assert isinstance(from_rpc_error(caught.value), InvalidArgumentError | NotFoundError)

    run(scenario())


def test_get_info_waits_for_the_model() -> None:
    async def scenario() -> None:
        servicer = DraftLinkServicer()
        server = GrpcServer(host="127.0.0.1", port=0, services=[SERVICE], register=servicer.register)
        port = await server.start()
        async with open_channel(f"127.0.0.1:{port}") as channel:
            stub = draft_pb2_grpc.DraftLinkServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.GetInfo(draft_pb2.DraftLinkServiceGetInfoRequest())
            assert isinstance(from_rpc_error(caught.value), UnavailableError)
        await server.drain(0)

    run(scenario())
