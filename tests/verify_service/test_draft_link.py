"""The exchange over real gRPC on loopback; the test plays the verify loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
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
from slipstream.v1 import draft_pb2, draft_pb2_grpc, sampling_pb2, tree_pb2
from slipstream_kernels.token_tree import TokenTree
from support import drafters
from support.drafters import WireDrafter, attach_request, offer, tree_reply, wire_drafter
from verify_service.attachments import MAX_ATTACHMENTS
from verify_service.draft_link import DraftLink
from verify_service.draft_records import LinkFacts
from verify_service.draft_servicer import SERVICE, DraftLinkServicer
from verify_service.link_types import LinkConfig
from verify_service.request import FinishReason, RequestKey, SamplingParams
from verify_service.tree_source import Committed, Opening

FACTS = LinkFacts("model", "tokenizer", 100, 128, 2, 512, 64)
KEY = RequestKey(1, 1)
OTHER = RequestKey(1, 2)
DEADLINE = 0.2


@pytest.fixture(params=["grpc", "shm"], autouse=True)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test is about records, so it holds whatever carries them."""
    monkeypatch.setattr(drafters, "TRANSPORT", request.param)
    return request.param


@asynccontextmanager
async def served(open_seconds: float = 10.0, **config: Any) -> AsyncIterator[tuple[DraftLink, str]]:
    """A link behind a server on a free port; leaves nothing attached."""
    servicer = DraftLinkServicer(open_seconds=open_seconds)
    servicer.link = link = DraftLink(FACTS, LinkConfig(**({"deadline": DEADLINE} | config)))
    server = GrpcServer(host="127.0.0.1", port=0, services=[SERVICE], register=servicer.register)
    port = await server.start()
    try:
        yield link, f"127.0.0.1:{port}"
    finally:
        link.close()
        await server.drain(1)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def opening(key: RequestKey = KEY, proposer: str = "p", tokens: tuple[int, ...] = (1, 2, 3)) -> Opening:
    return Opening(
        key=key,
        proposer=proposer,
        token_ids=tokens,
        prompt_length=2,
        sampling=SamplingParams(temperature=0.5, seed=2**63 + 5, logit_bias=((4, 1.5),), stop_token_ids=(9,)),
        choice_index=3,
        tenant="t",
        adapter_id="a",
        cached_length=1,
    )


def committed(length: int, *tokens: int, key: RequestKey = KEY, max_nodes: int = 8, max_depth: int = 4) -> Committed:
    return Committed(key, tokens, length, max_nodes, max_depth)


async def collect(link: DraftLink, *keys: RequestKey) -> tuple[list[TokenTree | None], float]:
    """What the loop's thread would collect, and how long that took."""
    begun = time.monotonic()
    trees = await asyncio.to_thread(link.collect, keys or (KEY,))
    return trees, time.monotonic() - begun


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the link tells nobody of its counters
            await asyncio.sleep(0.002)


def chains(drafter: WireDrafter, kind: str, record: Any) -> list[draft_pb2.DraftReply]:
    """Answer every record that wants a tree with the two tokens after the root."""
    if kind in {"open", "commit"} and record.max_nodes > 1:
        return [tree_reply(record.stamp, [record.stamp.root_token + 1, record.stamp.root_token + 2])]
    return []


def test_records_carry_the_request_and_its_steps() -> None:
    async def scenario() -> None:
        async with served() as (link, address), wire_drafter(address, "x", "p") as drafter:
            link.begin(opening())
            link.commit([committed(5, 4, 5)])
            link.end(KEY, FinishReason.LENGTH)
            opened, commit, close = await drafter.wait_for("open", "commit", "close")
            stamp = opened.stamp
            assert (stamp.epoch, stamp.slot, stamp.base_length, stamp.root_token) == (drafter.epoch, 0, 3, 3)
            assert list(opened.token_ids) == [1, 2, 3]
            assert (opened.proposer, opened.prompt_length, opened.cached_length) == (1, 2, 1)
            assert (opened.choice_index, opened.tenant, opened.adapter_id) == (3, "t", "a")
            assert (opened.sampling.temperature, opened.sampling.seed) == (0.5, 2**63 + 5)
            assert dict(opened.sampling.logit_bias) == {4: 1.5}
            assert opened.max_nodes == 1
            assert (commit.stamp.base_length, commit.stamp.root_token, list(commit.token_ids)) == (5, 5, [4, 5])
            assert (commit.max_nodes, commit.max_depth) == (8, 4)
            assert commit.stamp.generation == stamp.generation
            assert close.reason == sampling_pb2.FINISH_REASON_LENGTH

    run(scenario())


def test_trees_arrive_at_once_and_only_for_the_state_they_were_made_for() -> None:
    async def scenario() -> None:
        async with served() as (link, address), wire_drafter(address, "p", answer=chains):
            link.begin(opening())
            for step in range(5):
                link.commit([committed(4 + step, 10 + step)])
                trees, _ = await collect(link)
                assert trees == [TokenTree((11 + step, 12 + step), (-1, 0))]
            state = link.state()
            assert (state.attachments, state.misses, state.malformed) == (1, 0, 0)

    run(scenario())


def test_several_requests_of_one_step_come_in_one_message() -> None:
    async def scenario() -> None:
        async with served() as (link, address), wire_drafter(address, "p", answer=chains) as drafter:
            link.begin(opening())
            link.begin(opening(OTHER))
            await drafter.wait_for("open", "open")
            messages = []
            receive = drafter.answer
            drafter.answer = lambda d, kind, record: messages.append(kind) or receive(d, kind, record)
            link.commit([committed(4, 10), committed(4, 20, key=OTHER)])
            trees, _ = await collect(link, OTHER, KEY)
            assert [tree and tree.token_ids for tree in trees] == [(21, 22), (11, 12)]
            assert messages == ["commit", "commit"]

    run(scenario())


def test_the_budget_is_cut_to_the_offer() -> None:
    async def scenario() -> None:
        offers = [offer("p", max_nodes=3, max_depth=2)]
        async with served() as (link, address), wire_drafter(address, "p", proposers=offers) as drafter:
            link.begin(opening())
            link.commit([committed(4, 10, max_nodes=64, max_depth=63)])
            _, commit = await drafter.wait_for("open", "commit")
            assert (commit.max_nodes, commit.max_depth) == (3, 2)

    run(scenario())


def test_a_silent_drafter_costs_one_deadline_a_step_and_soon_nothing() -> None:
    async def scenario() -> None:
        async with served(deadline=0.05) as (link, address), wire_drafter(address, "p"):
            link.begin(opening())
            waits = []
            for step in range(6):
                assert link.expects([KEY]) == (step < 3)
                link.commit([committed(4 + step, 10)])
                trees, seconds = await collect(link)
                assert trees == [None]
                waits.append(seconds)
            assert all(0.04 < wait < 0.15 for wait in waits[:3])
            assert all(wait < 0.04 for wait in waits[3:])
            assert (link.state().waits, link.state().misses) == (3, 3)

    run(scenario())


def test_nothing_is_awaited_without_a_drafter_or_without_a_wanted_tree() -> None:
    async def scenario() -> None:
        async with served() as (link, address):
            link.begin(opening())
            link.commit([committed(4, 10)])
            assert (await collect(link))[1] < DEADLINE / 2
            assert not link.expects([KEY, OTHER])
            async with wire_drafter(address, "p") as drafter:
                await drafter.wait_for("open")
                assert link.expects([OTHER, KEY])
                link.commit([committed(5, 11, max_nodes=1)])
                trees, seconds = await collect(link)
                assert trees == [None]
                assert seconds < DEADLINE / 2
                assert link.collect([RequestKey(7, 7)]) == [None]

    run(scenario())


def test_an_empty_tree_and_a_refusal_end_the_wait() -> None:
    def empty(_drafter: WireDrafter, kind: str, record: Any) -> list[draft_pb2.DraftReply]:
        if kind != "commit":
            return []
        if record.stamp.base_length == 4:
            return [tree_reply(record.stamp, [])]
        return [draft_pb2.DraftReply(nack=draft_pb2.Nack(stamp=record.stamp, reason="too long\n"))]

    async def scenario() -> None:
        async with served() as (link, address), wire_drafter(address, "p", answer=empty):
            link.begin(opening())
            for step in range(3):
                link.commit([committed(4 + step, 10)])
                trees, seconds = await collect(link)
                assert trees == [None]
                assert seconds < DEADLINE / 2
            assert link.state().misses == 0
            assert not link.expects([KEY])

    run(scenario())


def test_a_late_tree_is_used_if_it_still_fits_and_counted_if_not() -> None:
    async def scenario() -> None:
        async with served(deadline=0.02) as (link, address), wire_drafter(address, "p") as drafter:
            link.begin(opening())
            link.commit([committed(4, 10)])
            assert (await collect(link))[0] == [None]
            _, commit = await drafter.wait_for("open", "commit")
            await drafter.send(tree_reply(commit.stamp, [50]))
            await asyncio.sleep(0.1)
            assert (await collect(link))[0] == [TokenTree.chain([50])]
            link.commit([committed(5, 11)])
            await drafter.send(tree_reply(commit.stamp, [50]))
            await until(lambda: link.state().stale == 1)
            assert (await collect(link))[0] == [None]
            assert link.state().attachments == 1

    run(scenario())


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


def test_a_drafter_that_leaves_ends_the_wait_and_the_next_one_is_brought_up_to_date() -> None:
    async def scenario() -> None:
        async with served(deadline=5.0) as (link, address):
            async with wire_drafter(address, "p", leave=False) as first:
                link.begin(opening())
                link.commit([committed(4, 10)])
                await first.wait_for("open", "commit")
                waiting = asyncio.create_task(collect(link))
                await asyncio.sleep(0.05)
            trees, seconds = await waiting
            assert trees == [None]
            assert seconds < 1.0
            link.commit([committed(6, 11, 12)])
            assert (await collect(link))[0] == [None]
            async with wire_drafter(address, "p", answer=chains) as second:
                (opened,) = await second.wait_for("open")
                assert list(opened.token_ids) == [1, 2, 3, 10, 11, 12]
                assert (opened.stamp.base_length, opened.max_nodes, opened.max_depth) == (6, 8, 4)
                assert opened.stamp.epoch != first.epoch
                await until(lambda: link.collect([KEY]) != [None])
                link.commit([committed(7, 13)])
                assert (await collect(link))[0] == [TokenTree((14, 15), (-1, 0))]

    run(scenario())


def test_requests_move_to_another_attachment_that_offers_their_proposer() -> None:
    async def scenario() -> None:
        async with served() as (link, address), wire_drafter(address, "p", answer=chains) as older:
            async with wire_drafter(address, "p", answer=chains) as newer:
                link.begin(opening())
                await newer.wait_for("open")
                assert older.records == []
            (opened,) = await older.wait_for("open")
            assert opened.stamp.epoch == older.epoch
            link.commit([committed(4, 10)])
            await until(lambda: link.collect([KEY]) == [TokenTree((11, 12), (-1, 0))])
            link.commit([committed(5, 11)])
            assert (await collect(link))[0] == [TokenTree((12, 13), (-1, 0))]

    run(scenario())


def test_resume_opens_the_slot_again_under_a_new_generation() -> None:
    async def scenario() -> None:
        async with served() as (link, address), wire_drafter(address, "p") as drafter:
            link.begin(opening())
            link.commit([committed(4, 10)])
            opened, commit = await drafter.wait_for("open", "commit")
            resume = draft_pb2.Resume(stamp=commit.stamp, have_length=3)
            await drafter.send(draft_pb2.DraftReply(resume=resume), draft_pb2.DraftReply(resume=resume))
            *_, again = await drafter.wait_for("open", "commit", "open")
            assert list(again.token_ids) == [1, 2, 3, 10]
            assert again.stamp.generation == opened.stamp.generation + 1
            assert link.state().stale == 1
            await drafter.send(tree_reply(commit.stamp, [5]), tree_reply(again.stamp, [6]))
            await until(lambda: link.state().stale == 2)
            assert (await collect(link))[0] == [TokenTree.chain([6])]

    run(scenario())


def test_a_drafter_that_does_not_read_loses_its_feed_and_gets_it_back() -> None:
    async def scenario() -> None:
        async with served(outbox_limit=2000) as (link, address), open_channel(address) as channel:
            stub = draft_pb2_grpc.DraftLinkServiceStub(channel)
            attached = await stub.Attach(await attach_request(stub, "p", transports=["grpc"]))
            call = stub.Exchange(metadata=(("slipstream-epoch", str(attached.epoch)),))
            await call.initial_metadata()
            link.begin(opening())
            length, slowest = 3, 0.0
            while link.state().gaps == 0:
                length += 500
                begun = time.monotonic()
                link.commit([committed(length, *range(99), *(7,) * 401)])
                slowest = max(slowest, time.monotonic() - begun)
                await asyncio.sleep(0)
                assert length < 50_000_000
            for _ in range(3):
                length += 1
                link.commit([committed(length, 8)])
            assert slowest < 1.0
            trees, seconds = await collect(link)
            assert trees == [None]
            assert seconds < DEADLINE / 2
            gap = None
            while gap is None:
                message = await call.read()
                gap = next((c.gap for c in message.commands if c.WhichOneof("kind") == "gap"), None)
            assert gap.dropped >= 1
            resume = draft_pb2.Resume(stamp=gap.stamp)
            await call.write(draft_pb2.ExchangeRequest(replies=[draft_pb2.DraftReply(resume=resume)]))
            message = await call.read()
            opened = message.commands[0].open
            assert len(opened.token_ids) == opened.stamp.base_length == length
            assert link.state().gaps == 1

    run(scenario())


def test_slots_are_reused_under_a_higher_generation_and_a_full_table_means_plain_decoding() -> None:
    async def scenario() -> None:
        async with served(num_slots=1) as (link, address), wire_drafter(address, "p", answer=chains) as drafter:
            link.begin(opening())
            link.begin(opening(OTHER))
            link.commit([committed(4, 10), committed(4, 20, key=OTHER)])
            trees, _ = await collect(link, KEY, OTHER)
            assert trees == [TokenTree((11, 12), (-1, 0)), None]
            link.end(KEY, FinishReason.STOP)
            link.commit([committed(5, 21, key=OTHER)])
            *_, opened = await drafter.wait_for("open", "commit", "close", "open")
            assert (opened.stamp.slot, opened.stamp.generation) == (0, 2)
            assert list(opened.token_ids) == [1, 2, 3, 20, 21]

    run(scenario())


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


def test_attachments_are_limited_expire_unopened_and_end_with_the_service() -> None:
    async def scenario() -> None:
        async with served(open_seconds=2.0) as (link, address), open_channel(address) as channel:
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
            await asyncio.sleep(2.1)
            for epoch, expected in (
                (epochs[0], FailedPreconditionError),
                (epochs[1], NotFoundError),
                (0, NotFoundError),
            ):
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


@pytest.mark.parametrize("metadata", [(), (("slipstream-epoch", "x"),), (("slipstream-epoch", "-1"),)])
def test_an_exchange_without_an_epoch_is_refused(metadata: Any) -> None:
    async def scenario() -> None:
        async with served() as (_, address), open_channel(address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await draft_pb2_grpc.DraftLinkServiceStub(channel).Exchange(metadata=metadata).read()
            assert isinstance(from_rpc_error(caught.value), InvalidArgumentError | NotFoundError)

    run(scenario())


def test_known_names_and_the_default() -> None:
    async def scenario() -> None:
        async with served(configured=("a",), default="auto") as (link, address):
            assert (link.known("a"), link.known("p"), link.default()) == (True, False, "a")
            async with wire_drafter(address, "p"):
                assert link.known("p")
                statuses = {status.name: status for status in link.proposers()}
                assert (statuses["a"].configured, statuses["a"].attachment) == (True, None)
                assert statuses["p"].attachment is not None
            await until(lambda: not link.known("p"))
        async with served(default=None) as (link, address), wire_drafter(address, "p"):
            assert link.default() is None
        async with served() as (link, address):
            assert link.default() is None
            async with wire_drafter(address, "p"):
                assert link.default() == "p"

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
