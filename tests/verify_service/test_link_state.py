"""What the link tells of its attachments and of its deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from slipstream.generation_types import FinishReason, SourceCount
from slipstream.v1 import draft_pb2, tree_pb2
from slipstream_kernels.token_tree import TokenTree
from support import drafters
from support.drafters import WireDrafter, tree_reply, wire_drafter
from support.played_link import KEY, OTHER, chains, collect, committed, opening, run, served, until
from verify_service.core.request import RequestKey

THIRD = RequestKey(1, 3)


@pytest.fixture(params=["grpc", "shm"], autouse=True)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafters, "TRANSPORT", request.param)


def test_what_became_of_trees_is_counted_for_each_attachment() -> None:
    async def scenario() -> None:
        async with (
            served(deadline=0.3) as (link, address),
            wire_drafter(address, "good", "x", answer=chains) as good,
            wire_drafter(address, "p") as mute,
        ):
            link.begin(opening())
            link.begin(opening(THIRD))
            link.begin(opening(OTHER, "good"))
            tree = None
            for step in range(3):
                first, second = 4 + 2 * step, 5 + 2 * step
                own = committed(first, 20, key=OTHER, verified=tree)
                link.commit([committed(first, 10), committed(first, 10, key=THIRD), own])
                (_, _, tree), _ = await collect(link, KEY, THIRD, OTHER)
                own = committed(second, 21, 22, 7, key=OTHER, verified=tree)
                link.commit([committed(second, 11), own])
                (_, tree), _ = await collect(link, KEY, OTHER)
            states = {(state.epoch, state.proposer): state for state in link.state().drafters}
            right, silent = states[good.epoch, "good"], states[mute.epoch, "p"]
            assert (right.requests, silent.requests, states[good.epoch, "x"].requests) == (1, 2, 0)
            assert (right.stats.hits, right.stats.misses) == (6, 0)
            assert (silent.stats.hits, silent.stats.waits, silent.stats.misses) == (0, 1, 2)  # it is waited for once
            assert (right.stats.drafted, right.stats.accepted) == (2 * 5, 2 * 3)
            assert right.stats.waits <= link.state().waits <= 6
            assert silent.stats.drafted == 0
            assert link.state().deadline == 0.3
            await good.send(tree_reply(tree_pb2.Stamp(epoch=good.epoch), [5], [-1]))
            await until(lambda: link.state().stale == 1)
            assert {(each.proposer, each.stale) for each in link.state().drafters} == {("good", 1), ("x", 1), ("p", 0)}

    run(scenario())


def test_nodes_of_a_tree_of_several_are_counted_for_each() -> None:
    def mixed(_drafter: WireDrafter, kind: str, record: Any) -> list[draft_pb2.DraftReply]:
        return [tree_reply(record.stamp, [5, 6, 7], [-1, 0, -1], sources=[1, 2, 1])] if kind == "commit" else []

    async def scenario() -> None:
        async with served() as (link, address), wire_drafter(address, "h", "a", "b", answer=mixed):
            link.begin(opening(proposer="h"))
            link.commit([committed(4, 10)])
            (tree,), _ = await collect(link)
            assert tree == TokenTree((5, 6, 7), (-1, 0, -1), None, ("a", "b", "a"))
            link.commit([committed(7, 5, 6, 1, verified=tree)])
            before = link.state().drafters[0]
            assert before.stats.sources == {"a": SourceCount("a", 2, 1), "b": SourceCount("b", 1, 1)}
            (tree,), _ = await collect(link)
            assert tree is not None
            link.commit([committed(8, 9, verified=tree.part([0, 1]))])
            assert link.state().drafters[0].stats.sources["a"] == SourceCount("a", 3, 1), "its second one was pruned"
            assert before.stats.sources["a"] == SourceCount("a", 2, 1)
            assert [each.stats.sources for each in link.state().drafters[1:]] == [{}, {}]

    run(scenario())


@pytest.mark.parametrize("sources", [range(1, 10), [1, 10]], ids=["many", "a long name"])
def test_sources_that_would_make_outputs_large_are_passed_over(sources: Sequence[int]) -> None:
    def mixed(_drafter: WireDrafter, kind: str, record: Any) -> list[draft_pb2.DraftReply]:
        fitting, larger = list(range(1, 9)), list(sources)
        chosen = larger if record.stamp.base_length == 4 else fitting
        tree = tree_reply(record.stamp, [5] * len(chosen), [-1] * len(chosen), sources=chosen)
        return [tree] if kind == "commit" else []

    async def scenario() -> None:
        names = [f"n{index}" for index in range(1, 10)]
        async with served() as (link, address), wire_drafter(address, "h", *names, "é" * 33, answer=mixed):
            link.begin(opening(proposer="h"))
            link.commit([committed(4, 10, max_nodes=16)])
            assert (await collect(link))[0] == [TokenTree((5,) * len(sources), (-1,) * len(sources))]
            link.commit([committed(5, 10, max_nodes=16)])
            assert (await collect(link))[0] == [TokenTree((5,) * 8, (-1,) * 8, None, tuple(names[:8]))]
            assert link.state().malformed == 0

    run(scenario())


def test_the_deadline_is_learned_from_steps() -> None:
    async def scenario() -> None:
        async with served(deadline=5.0, deadline_share=0.25) as (link, address), wire_drafter(address, "p"):
            link.begin(opening())
            for step in range(4):
                link.commit([committed(4 + step, 10)])
                _, seconds = await collect(link)
                assert seconds < 2.0
                await asyncio.sleep(0.04)
            assert 0.01 <= link.state().deadline < 1.0

    run(scenario())


def test_the_time_between_requests_is_no_step() -> None:
    async def scenario() -> None:
        async with served(deadline=5.0, deadline_share=0.25) as (link, address), wire_drafter(address, "p"):
            learned = link.state().deadline
            link.begin(opening())
            link.commit([committed(4, 10)])
            link.collect([KEY])
            link.end(KEY, FinishReason.STOP)
            await asyncio.sleep(0.1)
            link.begin(opening())
            link.commit([committed(4, 10)])
            assert link.state().deadline == learned

    run(scenario())
