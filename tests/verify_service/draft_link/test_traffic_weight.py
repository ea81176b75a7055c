"""Several draft services with one proposer: who drafts for which request, and how requests move between them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from slipstream.generation_types import FinishReason
from slipstream.rpc.channel import from_rpc_error
from slipstream.rpc.errors import InvalidArgumentError
from slipstream.v1 import draft_pb2, sampling_pb2
from slipstream_kernels.token_tree import TokenTree
from support import drafters
from support.drafters import WireDrafter, silent, tree_reply, wire_drafter
from support.played_link import KEY, chains, collect, committed, opening, run, served, until
from verify_service.core.draft_source import RequestOpening
from verify_service.core.request import RequestKey, SamplingParams
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.traffic_weight import pick_by_weight, routing_hash


@pytest.fixture(params=["grpc", "shm"], autouse=True)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafters, "TRANSPORT", request.param)


def numbered(number: int, **fields: Any) -> RequestOpening:
    values: dict[str, Any] = {
        "key": RequestKey(1, number),
        "proposer": "p",
        "token_ids": (number, 2, 3),
        "prompt_length": 2,
        "sampling": SamplingParams(seed=number),
        "choice_index": 0,
        "tenant": "",
        "adapter_id": "",
        "cached_length": 0,
    }
    return RequestOpening(**(values | fields))


class _Stub:
    def __init__(self, share: float) -> None:
        self.share = share


@pytest.mark.parametrize(
    ("shares", "parts"),
    [((1.0, 1.0), (1.0, 0.0)), ((0.1, 1.0), (0.1, 0.9)), ((0.25, 0.25, 1.0), (0.25, 0.25, 0.5)),
     ((0.2, 0.3), (0.2, 0.8)), ((0.0,), (1.0,)), ((0.0, 1.0), (0.0, 1.0))],
)  # fmt: skip
def test_requests_split_by_share_the_newest_first(shares: tuple[float, ...], parts: tuple[float, ...]) -> None:
    attachments = [_Stub(share) for share in shares]
    counts = [0] * len(shares)
    for number in range(4000):
        counts[attachments.index(pick_by_weight(attachments, routing_hash(numbered(number))))] += 1
    for count, part in zip(counts, parts, strict=True):
        assert abs(count / 4000 - part) < 0.04
        assert (count == 0) == (part == 0)


def test_a_requests_number_is_its_own_and_survives_a_resumption() -> None:
    first = routing_hash(numbered(1))
    assert 0 <= first < 1
    assert routing_hash(numbered(1, key=RequestKey(9, 9), token_ids=(1, 2, 3, 4, 5))) == first
    others = [numbered(1, token_ids=(7, 2, 3)), numbered(1, tenant="t"), numbered(1, choice_index=1), numbered(2)]
    others += [numbered(1, adapter_id="a@1"), numbered(1, adapter_id="a@2")]
    assert len({first, *map(routing_hash, others)}) == 7
    assert 0 <= routing_hash(numbered(1, token_ids=tuple(range(5000)), prompt_length=5000)) < 1


async def steps(link: DraftLink, count: int, length: int, *, keys: tuple[RequestKey, ...] = (KEY,)) -> int:
    for _ in range(count):
        length += 1
        link.commit([committed(length, length, key=key) for key in keys])
        await collect(link, *keys)
        await asyncio.sleep(0.002)
    return length


async def steps_until(condition: Callable[[], bool], link: DraftLink, length: int, *keys: RequestKey) -> int:
    """Steps until `condition` holds: who catches up may need a few on a busy machine."""
    async with asyncio.timeout(60):
        while not condition():
            length = await steps(link, 1, length, keys=keys or (KEY,))
    return length


def requests_of(link: DraftLink, drafter: WireDrafter) -> int:
    return sum(state.requests for state in link.state().drafters if state.epoch == drafter.epoch)


def test_the_newest_catches_up_and_takes_over_at_a_step_boundary() -> None:
    async def scenario() -> None:
        async with served() as (link, address), wire_drafter(address, "p", answer=chains) as older:
            link.begin(opening())
            length = await steps(link, 3, 3)
            async with wire_drafter(address, "p", answer=chains) as newer:
                length = await steps_until(lambda: requests_of(link, older) == 0, link, length)
                assert requests_of(link, newer) == 1
                assert older.of("close")[0].reason == sampling_pb2.FINISH_REASON_UNSPECIFIED
                assert newer.of("open")[0].stamp.base_length == 6
                link.commit([committed(length + 1, 50)])
                assert (await collect(link))[0] == [TokenTree((51, 52), (-1, 0))]
                states = {state.epoch: state for state in link.state().drafters}
                assert states[newer.epoch].stats.hits > 0
                assert states[newer.epoch].catching_up == 0
                assert states[older.epoch].stats.hits + states[newer.epoch].stats.hits == length - 2, (
                    "no step went without"
                )
                link.end(KEY, FinishReason.STOP)
                await until(lambda: len(newer.of("close")) == 1)
                assert len(older.of("close")) == 1

    run(scenario())


def test_a_request_that_asks_for_no_trees_moves_at_once() -> None:
    async def scenario() -> None:
        async with served() as (link, address), wire_drafter(address, "p", answer=chains) as older:
            link.begin(opening())
            link.commit([committed(4, 10, max_nodes=1)])
            await older.wait_for("open", "commit")
            async with wire_drafter(address, "p", answer=chains) as newer:
                link.commit([committed(5, 11, max_nodes=1)])
                assert (requests_of(link, older), requests_of(link, newer)) == (0, 1)
                link.commit([committed(6, 12)])
                await newer.wait_for("open", "commit", "commit")
                await until(lambda: link.collect([KEY]) == [TokenTree((13, 14), (-1, 0))])

    run(scenario())


def test_a_newer_one_that_never_answers_takes_nothing_over() -> None:
    async def scenario() -> None:
        async with served() as (link, address), wire_drafter(address, "p", answer=chains) as older:
            link.begin(opening())
            length = await steps(link, 2, 3)
            async with wire_drafter(address, "p", answer=silent) as newer:
                length = await steps(link, 5, length)
                assert older.of("close") == []
                assert len(newer.of("open")) == 1
                assert {s.epoch: s.catching_up for s in link.state().drafters} == {older.epoch: 0, newer.epoch: 1}
                assert link.state().misses == 0
            await until(lambda: link.state().attachments == 1)
            length = await steps(link, 2, length)
            assert {s.epoch: s.catching_up for s in link.state().drafters} == {older.epoch: 0}
            assert link.state().drafters[0].stats.hits == 9

    run(scenario())


def test_one_that_refuses_a_request_does_not_get_it() -> None:
    def refuse(_drafter: WireDrafter, kind: str, record: Any) -> list[draft_pb2.DraftReply]:
        return [draft_pb2.DraftReply(nack=draft_pb2.Nack(stamp=record.stamp))] if kind == "open" else []

    async def scenario() -> None:
        async with served() as (link, address), wire_drafter(address, "p", answer=chains) as older:
            link.begin(opening())
            length = await steps(link, 2, 3)
            async with wire_drafter(address, "p", answer=refuse) as newer:
                length = await steps_until(lambda: bool(newer.of("open")), link, length)
                length = await steps(link, 8, length)
                assert (requests_of(link, older), requests_of(link, newer)) == (1, 0)
                assert len(newer.of("open")) == 1
                assert older.of("close") == []

    run(scenario())


def test_the_older_one_dies_while_the_newer_one_catches_up() -> None:
    answering = False

    def later(drafter: WireDrafter, kind: str, record: Any) -> list[draft_pb2.DraftReply]:
        return chains(drafter, kind, record) if answering else []

    async def scenario() -> None:
        nonlocal answering
        async with served() as (link, address):
            async with wire_drafter(address, "p", answer=chains):
                link.begin(opening())
                length = await steps(link, 2, 3)
                newer_context = wire_drafter(address, "p", answer=later)
                newer = await newer_context.__aenter__()
                length = await steps(link, 2, length)
            await until(lambda: link.state().attachments == 1)
            answering = True
            length = await steps_until(lambda: link.state().drafters[0].stats.hits > 0, link, length)
            link.commit([committed(length + 1, 50)])
            assert (await collect(link))[0] == [TokenTree((51, 52), (-1, 0))]
            assert len(newer.of("open")) == 1
            await newer_context.__aexit__(None, None, None)

    run(scenario())


def test_shares_may_change_while_requests_run() -> None:
    keys = tuple(RequestKey(1, number) for number in range(40))

    async def scenario() -> None:
        async with (
            served() as (link, address),
            wire_drafter(address, "p", answer=chains) as older,
            wire_drafter(address, "p", answer=chains, share=0.25) as newer,
        ):
            for number in range(40):
                link.begin(numbered(number))
            due = sum(routing_hash(numbered(number)) < 0.25 for number in range(40))
            length = await steps(link, 3, 3, keys=keys)
            assert (requests_of(link, newer), requests_of(link, older)) == (due, 40 - due)
            for share in (0.75, 0.0, 1.0):
                await newer.send_message(draft_pb2.ExchangeRequest(share=share))
                await until(lambda share=share: link.state().drafters[1].share == share)
                due = sum(routing_hash(numbered(number)) < share for number in range(40))
                length = await steps_until(lambda due=due: requests_of(link, older) == 40 - due, link, length, *keys)
                length = await steps(link, 3, length, keys=keys)
                assert (requests_of(link, newer), requests_of(link, older)) == (due, 40 - due)
            assert link.state().misses == 0

    run(scenario())


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan"), float("inf")])
def test_a_share_that_is_no_part_of_a_whole_is_malformed(share: float) -> None:
    async def scenario() -> None:
        async with served() as (link, address), wire_drafter(address, "p") as drafter:
            await drafter.send_message(draft_pb2.ExchangeRequest(share=share))
            await until(lambda: drafter.error is not None)
            assert isinstance(from_rpc_error(drafter.error), InvalidArgumentError)
            assert link.state().malformed == 1

    run(scenario())


def test_one_that_changes_its_share_without_end_is_dropped() -> None:
    async def scenario() -> None:
        async with (
            served(num_slots=8) as (link, address),
            wire_drafter(address, "p", answer=chains) as older,
            wire_drafter(address, "p") as bad,
        ):
            for number in range(4):
                link.begin(numbered(number))
            for change in range(200):
                if bad.error is not None:
                    break
                with suppress(asyncio.InvalidStateError):  # it is dropped meanwhile
                    await bad.send_message(draft_pb2.ExchangeRequest(share=change % 2))
                await asyncio.sleep(0.002)
            await until(lambda: bad.error is not None)
            assert isinstance(from_rpc_error(bad.error), InvalidArgumentError)
            assert requests_of(link, older) == 4

    run(scenario())


def test_the_share_may_change_as_often_as_one_likes_while_nothing_runs() -> None:
    async def scenario() -> None:
        async with served(num_slots=8) as (link, address), wire_drafter(address, "p") as drafter:
            for change in range(1, 11):
                await drafter.send_message(draft_pb2.ExchangeRequest(share=change / 16))
                await until(lambda share=change / 16: link.state().drafters[0].share == share)

    run(scenario())


def test_a_tree_for_the_state_before_the_move_is_not_used_after_it() -> None:
    async def scenario() -> None:
        async with served() as (link, address), wire_drafter(address, "p", answer=chains) as older:
            link.begin(opening())
            length = await steps(link, 3, 3)
            async with wire_drafter(address, "p", answer=chains):
                await steps_until(lambda: requests_of(link, older) == 0, link, length)
                commit = older.of("commit")[-1]
                stale = link.state().stale
                await older.send(tree_reply(commit.stamp, [9]))
                await until(lambda: link.state().stale == stale + 1)

    run(scenario())
