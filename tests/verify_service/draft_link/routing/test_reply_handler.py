"""What drafters send that they must not, over real connections: it costs its sender at most."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest

from slipstream.rpc.channel import from_rpc_error, open_channel
from slipstream.rpc.errors import InvalidArgumentError
from slipstream.v1 import draft_pb2, draft_pb2_grpc, tree_pb2
from slipstream_kernels.token_tree import TokenTree
from support import drafters
from support.drafters import WireDrafter, attach_request, tree_reply, wire_drafter
from support.played_link import DEADLINE, KEY, OTHER, chains, collect, committed, opening, run, served, until
from verify_service.draft_link.draft_servicer import SERVICE


@pytest.fixture(params=["grpc", "shm"], autouse=True)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test is about records, so it holds whatever carries them."""
    monkeypatch.setattr(drafters, "TRANSPORT", request.param)


@pytest.mark.parametrize("field", ["epoch", "slot", "generation", "base_length", "root_token"])
def test_a_wrong_stamp_is_dropped_and_harms_nobody(field: str) -> None:
    def misdirected(_drafter: WireDrafter, kind: str, record: Any) -> list[draft_pb2.DraftReply]:
        if kind != "commit":
            return []
        stamp = tree_pb2.Stamp()
        stamp.CopyFrom(record.stamp)
        setattr(stamp, field, getattr(stamp, field) + 1)
        return [tree_reply(stamp, [999_999], [7]), tree_reply(record.stamp, [5])]

    async def scenario() -> None:
        async with served() as (link, address), wire_drafter(address, "p", answer=misdirected):
            link.begin(opening())
            link.commit([committed(4, 10)])
            assert (await collect(link))[0] == [TokenTree.chain([5])]
            assert (link.state().stale, link.state().malformed) == (1, 0)

    run(scenario())


MALFORMED: dict[str, Callable[[Any], draft_pb2.DraftReply]] = {
    "own parent": lambda stamp: tree_reply(stamp, [1, 2], [-1, 1]),
    "forward parent": lambda stamp: tree_reply(stamp, [1, 2, 3], [-1, 2, 0]),
    "cycle": lambda stamp: tree_reply(stamp, [1, 2], [1, 0]),
    "parent below -1": lambda stamp: tree_reply(stamp, [1], [-2]),
    "parent out of range": lambda stamp: tree_reply(stamp, [1], [2**31 - 1]),
    "token out of vocabulary": lambda stamp: tree_reply(stamp, [100]),
    "huge token": lambda stamp: tree_reply(stamp, [2**32 - 1]),
    "too many nodes": lambda stamp: tree_reply(stamp, range(8), [-1] * 8),
    "far too many nodes": lambda stamp: tree_reply(stamp, [1] * 100_000, [-1] * 100_000),
    "too deep": lambda stamp: tree_reply(stamp, range(5)),
    "fewer parents": lambda stamp: tree_reply(stamp, [1, 2], [-1]),
    "more parents": lambda stamp: tree_reply(stamp, [1], [-1, 0]),
    "log_probs of another length": lambda stamp: tree_reply(stamp, [1], log_probs=[0.0, 0.0]),
    "log_probs that are no numbers": lambda stamp: tree_reply(stamp, [1], log_probs=[float("nan")]),
    "sources of another length": lambda stamp: tree_reply(stamp, [1], sources=[0, 0]),
    "source out of range": lambda stamp: tree_reply(stamp, [1], sources=[1]),
    "no stamp": lambda stamp: draft_pb2.DraftReply(tree=tree_pb2.TokenTree(token_ids=[1], parents=[-1])),
    "empty reply": lambda stamp: draft_pb2.DraftReply(),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_record_costs_its_sender_the_attachment_and_nobody_else(kind: str) -> None:
    def hostile(_drafter: WireDrafter, record_kind: str, record: Any) -> list[draft_pb2.DraftReply]:
        return [MALFORMED[kind](record.stamp)] if record_kind == "commit" else []

    async def scenario() -> None:
        async with (
            served() as (link, address),
            wire_drafter(address, "good", answer=chains) as good,
            wire_drafter(address, "p", answer=hostile) as bad,
        ):
            link.begin(opening())
            link.begin(opening(OTHER, "good"))
            link.commit([committed(4, 10), committed(4, 20, key=OTHER)])
            trees, seconds = await collect(link, KEY, OTHER)
            assert trees == [None, TokenTree((21, 22), (-1, 0))]
            assert seconds < DEADLINE
            await until(lambda: bad.error is not None)
            assert isinstance(from_rpc_error(bad.error), InvalidArgumentError)
            assert (link.state().attachments, link.state().malformed) == (1, 1)
            assert not link.known("p")
            link.commit([committed(5, 11), committed(5, 21, key=OTHER)])
            assert (await collect(link, KEY, OTHER))[0] == [None, TokenTree((22, 23), (-1, 0))]
            assert good.error is None

    run(scenario())


def test_bytes_that_are_no_message_are_the_senders_error() -> None:
    async def scenario() -> None:
        async with served() as (link, address), open_channel(address) as channel:
            stub = draft_pb2_grpc.DraftLinkServiceStub(channel)
            attached = await stub.Attach(await attach_request(stub, "p", transports=["grpc"]))
            exchange = channel.stream_stream(f"/{SERVICE}/Exchange")
            call = exchange(metadata=(("slipstream-epoch", str(attached.epoch)),))
            await call.write(b"\xff\xff\xff\xff\xff")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert isinstance(from_rpc_error(caught.value), InvalidArgumentError)
            assert link.state().attachments == 0

    run(scenario())


def test_more_replies_than_a_message_may_hold_cost_the_attachment() -> None:
    async def scenario() -> None:
        async with served(num_slots=2) as (link, address), wire_drafter(address, "p") as drafter:
            stale = draft_pb2.DraftReply(resume=draft_pb2.Resume(stamp=tree_pb2.Stamp()))
            await drafter.send(*[stale] * 8)
            await until(lambda: link.state().stale == 8)
            assert link.state().attachments == 1
            await drafter.send(*[stale] * 9)
            await until(lambda: drafter.error is not None)
            assert isinstance(from_rpc_error(drafter.error), InvalidArgumentError)
            assert (link.state().attachments, link.state().malformed) == (0, 1)

    run(scenario())
