"""What requests and their drafters tell each other; the test plays the verify loop."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from unittest.mock import ANY

import pytest

from slipstream.generation_types import FinishReason
from slipstream.rpc.channel import open_channel
from slipstream.v1 import draft_pb2, draft_pb2_grpc, sampling_pb2
from slipstream_kernels.token_tree import TokenTree
from support import drafters
from support.drafters import WireDrafter, attach_request, offer, tree_reply, wire_drafter
from support.played_link import DEADLINE, KEY, OTHER, chains, collect, committed, opening, run, served, until
from verify_service.core.request import RequestKey
from verify_service.draft_link.transports.negotiation import ASKS_AHEAD


@pytest.fixture(params=["grpc", "shm"], autouse=True)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test is about records, so it holds whatever carries them."""
    monkeypatch.setattr(drafters, "TRANSPORT", request.param)


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


def test_who_asks_to_draft_ahead_is_attached_in_lockstep_and_operators_are_told_why() -> None:
    async def scenario() -> None:
        ahead = draft_pb2.DRAFT_MODE_AHEAD
        async with served() as (link, address), wire_drafter(address, "p", answer=chains, mode=ahead):
            link.begin(opening())
            link.commit([committed(4, 10)])
            assert (await collect(link))[0] == [TokenTree((11, 12), (-1, 0))]
            (status,) = link.proposers()
            assert status.attachment is not None
            assert status.attachment.overlap == f"drafts after the pass: {ASKS_AHEAD}"

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


def test_a_drafter_that_says_nothing_is_asked_again_but_waited_for_once() -> None:
    async def scenario() -> None:
        async with served(deadline=0.05) as (link, address), wire_drafter(address, "p") as drafter:
            link.begin(opening())
            for step in range(4):
                assert step > 2 or link.expects([KEY])
                link.commit([committed(4 + step, 10)])
                assert await collect(link, KEY) == ([None], ANY)
                assert (link.state().waits, link.state().misses) == (1, 1)
            _, _, *late = await drafter.wait_for("open", *["commit"] * 4)
            await drafter.send(tree_reply(late[0].stamp, [11]))
            await until(lambda: link.state().stale == 1)
            link.commit([committed(8, 10)])
            assert await collect(link, KEY) == ([None], ANY)
            assert (link.state().waits, link.state().misses) == (2, 2)

    run(scenario())


def test_waits_are_counted_for_the_drafter_whose_trees_came() -> None:
    async def scenario() -> None:
        async with served(deadline=30.0) as (link, address), wire_drafter(address, "p") as drafter:
            link._on_wait = told.append
            link.begin(opening())
            link.commit([committed(4, 10)])
            waiting = asyncio.create_task(collect(link))
            _, commit = await drafter.wait_for("open", "commit")
            await asyncio.sleep(0.2)
            await drafter.send(tree_reply(commit.stamp, [11]))
            trees, _ = await waiting
            assert trees == [TokenTree((11,), (-1,))]
            link.observe_wait([KEY, OTHER], 0.25)  # as of trees that a device had first
            (state,) = link.state().drafters
            assert (link.state().waits, state.stats.waits, link.state().misses) == (2, 2, 0)
            assert told == [ANY, 0.25] and 0.1 < told[0] < 30.0

    told: list[float] = []
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
            await until(lambda: link.collect([KEY]) == [TokenTree.chain([50])])
            link.commit([committed(5, 11)])
            await drafter.send(tree_reply(commit.stamp, [50]))
            await until(lambda: link.state().stale == 1)
            assert (await collect(link))[0] == [None]
            assert link.state().attachments == 1

    run(scenario())


def test_a_drafter_that_leaves_ends_the_wait_and_the_next_one_is_brought_up_to_date() -> None:
    async def scenario() -> None:
        async with served(deadline=60.0) as (link, address):
            async with wire_drafter(address, "p", leave=False) as first:
                link.begin(opening())
                link.commit([committed(4, 10)])
                await first.wait_for("open", "commit")
                waiting = asyncio.create_task(collect(link))
                await asyncio.sleep(0.05)
            trees, seconds = await waiting
            assert trees == [None]
            assert seconds < 30.0
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
            assert slowest < DEADLINE
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


def test_what_rounds_take_and_how_deep_trees_are_is_the_word_of_the_newest_drafter_that_offers_the_proposer() -> None:
    async def scenario() -> None:
        async with served() as (link, address):
            assert link.round_costs("p") == ()
            assert link.most_levels("p") == 0
            for seconds in (0.25, 0.5):
                says = offer("p")
                says.round_costs.add(requests=4, levels=2, seconds=seconds)
                says.max_depth = int(8 * seconds)
                async with wire_drafter(address, "other", proposers=[offer("other"), says]):
                    assert link.round_costs("p") == ((4, 2, seconds),)
                    assert link.most_levels("p") == 8 * seconds
                    assert link.round_costs("other") == link.round_costs("unknown") == ()
                await until(lambda: not link.known("p"))

    run(scenario())
