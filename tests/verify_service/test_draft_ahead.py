"""Trees ahead on the wire: what is selected at a commit, what is dropped, and what costs the attachment."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from slipstream.generation_types import FinishReason
from slipstream.rpc.errors import SlipstreamError
from slipstream.rpc.server import GrpcServer
from slipstream.v1 import draft_pb2, tree_pb2
from slipstream_kernels.token_tree import TokenTree
from support import drafters
from support.drafters import WireDrafter, tree_reply, wire_drafter
from verify_service.core.draft_source import Committed, RequestOpening
from verify_service.core.request import RequestKey, SamplingParams
from verify_service.draft_link import circuit_breaker
from verify_service.draft_link.attachment import MAX_AHEAD
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.draft_servicer import SERVICE, DraftLinkServicer
from verify_service.draft_link.link_config import LinkConfig
from verify_service.draft_link.records import LinkFacts, Mode
from verify_service.draft_link.slots.draft_stats import DraftStats
from verify_service.draft_link.slots.slot import Slot

FACTS = LinkFacts("model", "tokenizer", 100, 128, 2, 512, 64)
KEY = RequestKey(1, 1)


@pytest.fixture(params=["grpc", "shm"], autouse=True)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(drafters, "TRANSPORT", request.param)
    return request.param


@asynccontextmanager
async def drafted(
    mode: int = draft_pb2.DRAFT_MODE_AHEAD, fan_out: int = 3, deadline: float = 0.2, *, lockstep: bool = False
) -> AsyncIterator[tuple[DraftLink, WireDrafter]]:
    """A link with one attached drafter that says nothing by itself, and a request that stands at token 10."""
    servicer = DraftLinkServicer()
    servicer.link = link = DraftLink(FACTS, LinkConfig(deadline=deadline))
    server = GrpcServer(host="127.0.0.1", port=0, services=[SERVICE], register=servicer.register)
    address = f"127.0.0.1:{await server.start()}"
    offers = [draft_pb2.ProposerOffer(name="p", max_nodes=6, max_depth=4, lockstep=lockstep)]
    try:
        async with wire_drafter(address, "p", proposers=offers, mode=mode, fan_out=fan_out) as drafter:
            sampling = SamplingParams(temperature=0.5, seed=7)
            link.begin(RequestOpening(KEY, "p", (1, 2, 3), 2, sampling, 0, "", "", 0))
            link.commit([Committed(KEY, (10,), 4, 8, 4)])
            await drafter.wait_for("open", "commit")
            yield link, drafter
    finally:
        link.close()
        await server.drain(1)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def stamp(drafter: WireDrafter, more: int = 0, root: int = 0) -> tree_pb2.Stamp:
    """The newest state that the drafter knows, or one that lies ahead of it."""
    made = tree_pb2.Stamp()
    made.CopyFrom(drafter.records[-1][1].stamp)
    made.base_length += more
    made.root_token = root or made.root_token
    return made


def ahead(drafter: WireDrafter, more: int, bonus: int, parent: tuple[int, int], tokens: list[int], tree_id: int) -> Any:
    node = tree_pb2.ParentNode(tree_id=parent[0], node=parent[1])
    return tree_reply(stamp(drafter, more, bonus), tokens, tree_id=tree_id, parent=node)


def stats(link: DraftLink) -> DraftStats:
    (state,) = link.state().drafters
    return state.stats


async def settled(link: DraftLink, condition: Callable[[], bool]) -> None:
    """Wait until the link has taken in enough of what was sent; nothing of it is handed out meanwhile."""
    async with asyncio.timeout(60):
        while not condition():
            for attachment in link._router.live:
                with contextlib.suppress(SlipstreamError):
                    link.tend(attachment)
            await asyncio.sleep(0.002)


def slot_of(link: DraftLink) -> Slot:
    """The request's slot."""
    (attachment,) = link._router.live
    (slot,) = attachment.slots.taken()
    return slot


def held(link: DraftLink) -> int:
    return len(slot_of(link).cache.trees)


async def collect(link: DraftLink) -> TokenTree | None:
    (tree,) = await asyncio.to_thread(link.collect, [KEY])
    return tree


def test_the_tree_for_the_end_that_came_is_there_at_once() -> None:
    async def scenario() -> None:
        async with drafted() as (link, drafter):
            current = tree_reply(stamp(drafter), [20, 21, 30], [-1, 0, -1], tree_id=1)
            outcomes = [
                ahead(drafter, 1, 40, (0, -1), [41], 2),
                ahead(drafter, 2, 50, (1, 0), [51], 3),
                ahead(drafter, 2, 50, (1, 2), [52, 53], 4),
            ]
            await drafter.send(current)
            await settled(link, lambda: slot_of(link).tree is not None)
            tree = await collect(link)
            assert tree == TokenTree((20, 21, 30), (-1, 0, -1))
            await drafter.send(*outcomes)
            await settled(link, lambda: held(link) == 3)
            link.commit([Committed(KEY, (30, 50), 6, 8, 4, verified=[(tree, (2,))])])
            assert await collect(link) == TokenTree.chain([52, 53])
            *_, commit = await drafter.wait_for("open", "commit", "commit")
            assert commit.tree_id == 4
            assert stats(link) == DraftStats(hits=2, drafted=3, accepted=1, ahead_hits=1, ahead_misses=1)
            assert held(link) == 0

    run(scenario)


@pytest.mark.parametrize(("mode", "waited"), [(draft_pb2.DRAFT_MODE_AHEAD, 0), (draft_pb2.DRAFT_MODE_AHEAD_OR_WAIT, 1)])
def test_a_miss_is_waited_for_where_the_drafter_asks_for_it_alone(mode: int, waited: int) -> None:
    async def scenario() -> None:
        async with drafted(mode, deadline=0.05) as (link, drafter):
            await drafter.send(ahead(drafter, 1, 40, (0, -1), [41], 2))
            await settled(link, lambda: held(link) == 1)
            link.commit([Committed(KEY, (39,), 5, 8, 4)])
            assert await collect(link) is None
            assert link.state().waits == waited
            assert stats(link).ahead_misses == 1

    run(scenario)


def test_what_cannot_come_true_and_what_is_too_many_is_dropped_and_counted() -> None:
    async def scenario() -> None:
        async with drafted() as (link, drafter):
            await drafter.send(
                ahead(drafter, 2, 40, (9, 0), [41], 2),
                ahead(drafter, 2, 40, (0, -1), [41], 3),
                *(ahead(drafter, 1, 40 + i, (0, -1), [41], 4 + i) for i in range(5)),
            )
            await settled(link, lambda: stats(link).ahead_stale == 4)
            assert held(link) == 3
            assert link.state().stale == 4
            assert [(each.mode, each.stale) for each in link.state().drafters] == [(Mode.AHEAD, 4)]
            link.commit([Committed(KEY, (44,), 5, 8, 4)])
            await drafter.wait_for("open", "commit", "commit")
            assert await collect(link) is None
            late = ahead(drafter, -1, 44, (0, -1), [41], 20)
            await drafter.send(late)
            await settled(link, lambda: stats(link).ahead_late == 1)

    run(scenario)


def test_in_lockstep_none_are_taken() -> None:
    async def scenario() -> None:
        async with drafted(draft_pb2.DRAFT_MODE_UNSPECIFIED) as (link, drafter):
            await drafter.send(ahead(drafter, 1, 40, (0, -1), [41], 2))
            await settled(link, lambda: link.state().stale == 1)
            assert held(link) == 0

    run(scenario)


@pytest.mark.parametrize(
    "change",
    [
        {"parents": [0]},
        {"token_ids": [100]},
        {"token_ids": [1, 2]},
        {"token_ids": [1] * 6, "parents": [-1] * 6},
        {"token_ids": [1] * 5, "parents": [-1, 0, 1, 2, 3]},
        {"log_probs": [float("nan")]},
        {"sources": [1]},
        {"parent": tree_pb2.ParentNode(node=-2)},
        {"parent": tree_pb2.ParentNode(node=63, tree_id=1)},
    ],
)
def test_a_malformed_one_costs_the_attachment_before_it_is_used(change: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with drafted() as (link, drafter):
            fields = {"token_ids": [1], "parents": [-1], "tree_id": 2, "parent": tree_pb2.ParentNode(node=-1)} | change
            tree = tree_pb2.TokenTree(stamp=stamp(drafter, 1, 40), **fields)
            await drafter.send(draft_pb2.DraftReply(tree=tree))
            await settled(link, lambda: link.state().attachments == 0)
            link.commit([Committed(KEY, (40,), 5, 8, 4)])
            assert await collect(link) is None
            assert link.state().malformed == 1
            async with asyncio.timeout(60):
                while drafter.error is None:  # noqa: ASYNC110 (a call that ends wakes nobody here)
                    await asyncio.sleep(0.002)
            assert drafter.error.code() is grpc.StatusCode.INVALID_ARGUMENT

    run(scenario)


def test_a_proposer_that_stays_in_lockstep_is_waited_for() -> None:
    async def scenario() -> None:
        async with drafted(lockstep=True, deadline=0.05) as (link, drafter):
            await drafter.send(ahead(drafter, 1, 40, (0, -1), [41], 2))
            await settled(link, lambda: link.state().stale == 1)
            assert await collect(link) is None
            assert (link.state().waits, stats(link).ahead_misses) == (1, 0)

    run(scenario)


def test_who_is_never_there_in_time_is_not_expected_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_breaker, "LAST_BACKOFF", 600.0)
    monkeypatch.setattr(circuit_breaker, "FIRST_BACKOFF", 600.0)

    async def scenario() -> None:
        async with drafted() as (link, drafter):
            for length in range(5, 8):
                assert link.expects([KEY])
                assert await collect(link) is None
                link.commit([Committed(KEY, (40,), length, 8, 4)])
            assert not link.expects([KEY])
            await drafter.wait_for("open", *["commit"] * 4)
            await drafter.send(ahead(drafter, 1, 41, (0, -1), [42], 2))
            await settled(link, lambda: held(link) == 1)
            link.commit([Committed(KEY, (50,), 8, 8, 4)])
            assert await collect(link) is None
            assert link.expects([KEY])

    run(scenario)


def test_the_fan_out_is_bounded_and_stated() -> None:
    async def scenario() -> None:
        async with drafted(fan_out=1000) as (link, _):
            assert slot_of(link).cache.capacity == MAX_AHEAD

    run(scenario)


def test_a_step_may_begin_with_all_trees_ahead_before_it_is_known_which_is_right() -> None:
    async def scenario() -> None:
        async with drafted() as (link, drafter):
            assert link.drafts_ahead_only([KEY])
            await drafter.send(tree_reply(stamp(drafter), [20, 21], [-1, 0], tree_id=1))
            await settled(link, lambda: slot_of(link).tree is not None)
            tree = await collect(link)
            assert tree == TokenTree.chain([20, 21])
            assert not await asyncio.to_thread(link.wait_for_outcomes, [KEY], 0.01)
            await drafter.send(
                ahead(drafter, 3, 50, (1, 1), [51], 2),
                ahead(drafter, 2, 50, (1, 0), [52], 3),
                ahead(drafter, 1, 50, (0, -1), [53], 4),
            )
            assert await asyncio.to_thread(link.wait_for_outcomes, [KEY], 60.0), "at once: no more are kept"
            (prepared,) = link.take_outcome_trees([KEY])
            assert [(each.path, each.token) for each in prepared] == [((20, 21), 50), ((20,), 50), ((), 50)]
            await drafter.send(ahead(drafter, 2, 51, (1, 0), [54], 5))
            await settled(link, lambda: stats(link).ahead_late == 1)
            link.commit([Committed(KEY, (20, 50), 6, 8, 4, None, prepared[1].tree, verified=[(tree, (0,))])])
            *_, commit = await drafter.wait_for("open", "commit", "commit")
            assert commit.tree_id == 3
            assert (slot_of(link).in_flight_tree, slot_of(link).in_flight_tree_id) == (TokenTree.chain([52]), 3)
            assert stats(link) == DraftStats(
                hits=2, late=1, drafted=2, accepted=1, ahead_hits=1, ahead_misses=1, ahead_late=1
            )
            link.end(KEY, FinishReason.LENGTH, [(prepared[1].tree, (0,))])
            assert (stats(link).drafted, stats(link).accepted) == (3, 2)

    run(scenario)


def test_who_is_waited_for_is_not_begun_without() -> None:
    async def scenario() -> None:
        async with drafted(draft_pb2.DRAFT_MODE_AHEAD_OR_WAIT) as (link, _):
            assert not link.drafts_ahead_only([KEY])
            assert [each.mode for each in link.state().drafters] == [Mode.AHEAD_OR_WAIT]
        async with drafted(lockstep=True) as (link, _):
            assert not link.drafts_ahead_only([KEY])
            assert [each.mode for each in link.state().drafters] == [Mode.LOCKSTEP]

    run(scenario)


def test_steps_that_begin_without_any_tree_end_the_patience_with_a_drafter() -> None:
    async def scenario() -> None:
        async with drafted() as (link, _):
            for length in range(5, 8):
                assert link.expects([KEY])
                assert link.take_outcome_trees([KEY]) == [[]]
                link.commit([Committed(KEY, (40,), length, 8, 4)])
            assert not link.expects([KEY])
            assert link.drafts_ahead_only([KEY])
            assert await asyncio.to_thread(link.wait_for_outcomes, [KEY], 60.0), "nobody is left to wait for"
            assert link.take_outcome_trees([KEY]) == [()]

    run(scenario)
