"""The draft service against a verify end over real loopback gRPC."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import grpc
import pytest

from draft_service.proposers.base import Proposer
from draft_service.proposers.ngram.ngram import NgramConfig, NgramProposer
from draft_service.protocol import codec
from draft_service.protocol.codec import Identity
from draft_service.verify_link.reconnect_policy import Backoff
from draft_service.verify_link.verify_link import VerifyLink
from draft_service.worker.worker import Worker
from slipstream.rpc.errors import FailedPreconditionError, UnavailableError
from slipstream.v1 import draft_pb2 as pb
from tests.draft_service.broken_proposers import Broken, OddAtFirst, Refusing, Slow, Unfit
from tests.draft_service.verify_peer import VerifyPeer, commit_command, open_command, stamp

REPEATING = [5, 6, 7, 8, 9, 5, 6]


def ngram(name: str = "ngram") -> NgramProposer:
    return NgramProposer(name, NgramConfig(trust=8))


@asynccontextmanager
async def linked(peer: VerifyPeer, proposers: Sequence[Proposer]) -> AsyncIterator[tuple[VerifyLink, Worker, int]]:
    port = await peer.start()
    worker = Worker(proposers)
    worker.start()
    identity = Identity("test", "127.0.0.1:1", 42, "0")
    link = VerifyLink(f"127.0.0.1:{port}", worker, identity)
    task = asyncio.create_task(link.run())
    try:
        yield link, worker, port
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        worker.stop()
        await peer.stop()


def test_attach_says_what_is_offered_and_trees_answer_states() -> None:
    async def scenario() -> None:
        peer = VerifyPeer()
        async with linked(peer, [ngram(), ngram("other")]) as (link, worker, _):
            epoch = await peer.next_epoch()
            attach = await peer.attachments.get()
            assert [(o.name, o.max_nodes, o.max_depth) for o in attach.proposers] == [("ngram", 9, 8), ("other", 9, 8)]
            assert (attach.min_version, attach.max_version, attach.process_id) == (1, 1, 42)
            assert link.epoch == epoch

            at = stamp(epoch, 3, 7, REPEATING)
            peer.send(open_command(at, REPEATING, proposer=1))
            tree = await peer.next_tree()
            assert tree.stamp == at
            assert list(tree.token_ids) == [7, 8, 9, 5, 6]
            assert list(tree.parents) == [-1, 0, 1, 2, 3]

            tokens = [*REPEATING, 7, 8]
            at = stamp(epoch, 3, 7, tokens)
            peer.send(commit_command(at, [7, 8], max_nodes=3, max_depth=5))
            tree = await peer.next_tree()
            assert tree.stamp == at
            assert list(tree.token_ids) == [9, 5]
            assert worker.stats.sessions == 1

            peer.send(pb.DraftCommand(close=pb.Close(stamp=at)))
            at = stamp(epoch, 3, 8, [1, 2, 3])
            peer.send(open_command(at, [1, 2, 3]))
            tree = await peer.next_tree()
            assert tree.stamp == at
            assert not tree.token_ids, "no match is said at once"

    asyncio.run(scenario())


def test_no_tree_is_made_where_none_is_wanted() -> None:
    async def scenario() -> None:
        peer = VerifyPeer()
        async with linked(peer, [ngram()]):
            epoch = await peer.next_epoch()
            peer.send(open_command(stamp(epoch, 0, 1, REPEATING), REPEATING, max_nodes=1))
            tokens = [*REPEATING, 7]
            peer.send(commit_command(stamp(epoch, 0, 1, tokens), [7], max_depth=0))
            tokens = [*tokens, 8]
            peer.send(commit_command(stamp(epoch, 0, 1, tokens), [8]))
            tree = await peer.next_tree()
            assert tree.stamp.base_length == len(tokens)
            assert peer.replies.empty()

    asyncio.run(scenario())


def test_records_of_one_message_yield_one_message_of_newest_states() -> None:
    async def scenario() -> None:
        peer = VerifyPeer()
        async with linked(peer, [ngram()]):
            epoch = await peer.next_epoch()
            commands = []
            for slot in range(8):
                commands.append(open_command(stamp(epoch, slot, 1, REPEATING), REPEATING))
                commands.append(commit_command(stamp(epoch, slot, 1, [*REPEATING, 7]), [7]))
            peer.send(*commands)
            trees = [await peer.next_tree() for _ in range(8)]
            assert sorted(tree.stamp.slot for tree in trees) == list(range(8))
            assert {tree.stamp.base_length for tree in trees} == {len(REPEATING) + 1}
            assert peer.messages == 1

    asyncio.run(scenario())


def test_a_gap_is_answered_with_resume_and_mended_by_open() -> None:
    async def scenario() -> None:
        peer = VerifyPeer()
        async with linked(peer, [ngram()]):
            epoch = await peer.next_epoch()
            peer.send(open_command(stamp(epoch, 0, 1, REPEATING), REPEATING))
            await peer.next_tree()

            tokens = [*REPEATING, 7, 8, 9]
            at = stamp(epoch, 0, 1, tokens)
            peer.send(pb.DraftCommand(gap=pb.Gap(stamp=at, dropped=2)))
            reply = await peer.next_reply()
            assert reply.resume == pb.Resume(stamp=at, have_length=len(REPEATING))

            later = [*tokens, 5]
            peer.send(commit_command(stamp(epoch, 0, 1, later), [5]))
            at = stamp(epoch, 0, 1, later)
            peer.send(open_command(at, later, prompt_length=3))
            tree = await peer.next_tree()
            assert tree.stamp == at
            assert list(tree.token_ids)[:5] == [6, 7, 8, 9, 5]

            peer.send(commit_command(stamp(epoch, 0, 1, [*later, 6, 7]), [7]))
            reply = await peer.next_reply()
            assert reply.resume.have_length == len(later), "a hole is found without a Gap"

    asyncio.run(scenario())


def test_attaches_again_after_drops_refusals_and_restarts() -> None:
    async def scenario() -> None:
        peer = VerifyPeer()
        async with linked(peer, [ngram()]) as (link, worker, port):
            first = await peer.next_epoch()
            peer.send(open_command(stamp(first, 0, 1, REPEATING), REPEATING))
            await peer.next_tree()
            peer.drop_exchange()
            second = await peer.next_epoch()
            assert second > first
            peer.send(open_command(stamp(first, 0, 1, REPEATING), REPEATING))
            peer.send(open_command(stamp(second, 1, 1, REPEATING), REPEATING))
            assert (await peer.next_tree()).stamp.epoch == second
            assert worker.stats.sessions == 1, "sessions of the first attachment are gone"

            peer.refuse_attach = grpc.StatusCode.FAILED_PRECONDITION
            peer.drop_exchange()
            async with asyncio.timeout(60):
                while link.epoch is not None:  # noqa: ASYNC110 (the link tells nobody)
                    await asyncio.sleep(0.005)
            await peer.stop()
            peer.refuse_attach = None
            await peer.start(port)
            third = await peer.next_epoch()
            peer.send(open_command(stamp(third, 0, 1, REPEATING), REPEATING))
            assert (await peer.next_tree()).stamp.epoch == third

    asyncio.run(scenario())


def test_a_failing_proposer_loses_that_request_only() -> None:
    async def scenario() -> None:
        peer = VerifyPeer()
        async with linked(peer, [Broken(), ngram()]):
            epoch = await peer.next_epoch()
            peer.send(*(open_command(stamp(epoch, slot, 1, [9, slot]), [9, slot]) for slot in range(1, 7)))
            replies = [await peer.next_reply() for _ in range(6)]
            kinds = {reply.nack.stamp.slot or reply.tree.stamp.slot: reply.WhichOneof("kind") for reply in replies}
            assert kinds == {1: "nack", 2: "nack", 3: "nack", 4: "nack", 5: "tree", 6: "nack"}

            peer.send(commit_command(stamp(epoch, 1, 1, [9, 1, 5]), [5]))
            peer.send(commit_command(stamp(epoch, 5, 1, [9, 5, 5]), [5]))
            peer.send(open_command(stamp(epoch, 1, 2, REPEATING), REPEATING, proposer=1))
            assert {(await peer.next_tree()).stamp.slot for _ in range(2)} == {1, 5}

    asyncio.run(scenario())


def test_the_tree_of_a_state_superseded_while_it_was_drafted_is_told_all_the_same() -> None:
    async def scenario() -> None:
        peer = VerifyPeer()
        slow = Slow()
        async with linked(peer, [slow]) as (_, worker, _):
            epoch = await peer.next_epoch()
            peer.send(open_command(stamp(epoch, 0, 1, [10]), [10]))
            await asyncio.to_thread(slow.begun.wait, 60)
            for last in (11, 12, 13):
                text = list(range(10, last + 1))
                peer.send(commit_command(stamp(epoch, 0, 1, text), [last]))
            peer.send(pb.DraftCommand(close=pb.Close(stamp=stamp(epoch, 1, 1, [1]))))
            async with asyncio.timeout(60):
                while 1 not in worker._newest:  # noqa: ASYNC110 (the worker tells nobody)
                    await asyncio.sleep(0.005)
            slow.leave.release(2)
            trees = [await peer.next_tree() for _ in range(2)]
            assert [(tree.stamp.base_length, list(tree.token_ids)) for tree in trees] == [(1, [10]), (4, [13])]
            assert worker.stats.superseded == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("slot", "proposer", "tokens", "base", "prompt"),
    [(99, 0, [1, 2], 2, 2), (0, 5, [1, 2], 2, 2), (0, 0, [1, 2], 3, 2), (0, 0, [], 0, 1), (0, 0, [1, 2], 2, 9)],
)
def test_an_open_that_contradicts_itself_is_nacked(slot, proposer, tokens, base, prompt) -> None:
    async def scenario() -> None:
        peer = VerifyPeer()
        async with linked(peer, [ngram()]):
            epoch = await peer.next_epoch()
            at = stamp(epoch, slot, 1, tokens)
            at.base_length = base
            peer.send(open_command(at, tokens, proposer=proposer, prompt_length=prompt))
            reply = await peer.next_reply()
            assert reply.nack.stamp == at
            assert reply.nack.reason

    asyncio.run(scenario())


def test_what_does_not_fit_the_target_is_not_offered() -> None:
    async def scenario() -> None:
        peer = VerifyPeer()
        async with linked(peer, [Unfit("unfit", NgramConfig()), ngram()]):
            epoch = await peer.next_epoch()
            attach = await peer.attachments.get()
            assert [offer.name for offer in attach.proposers] == ["ngram"]
            assert list(attach.unfit) == [pb.UnfitProposer(name="unfit", reason="another tokenizer")]
            peer.send(open_command(stamp(epoch, 0, 1, REPEATING), REPEATING))
            assert (await peer.next_tree()).token_ids

    asyncio.run(scenario())


def test_where_nothing_fits_verify_is_told_why_and_the_log_says_it_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        peer = VerifyPeer()
        async with linked(peer, [Unfit("unfit", NgramConfig())]) as (link, _, _):
            for _ in range(4):
                told = await asyncio.wait_for(peer.unfit.get(), 60)
            assert told == {"unfit": "another tokenizer"}
            assert "no proposer fits the model: unfit: another tokenizer" in link.refusal

    with caplog.at_level("INFO"):
        asyncio.run(scenario())
    assert [each.levelname for each in caplog.records if "fit" in each.getMessage()] == ["ERROR"]


def test_an_unforeseen_failure_is_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        peer = VerifyPeer()
        async with linked(peer, [OddAtFirst()]):
            epoch = await peer.next_epoch()
            peer.send(open_command(stamp(epoch, 0, 1, [9, 5]), [9, 5]))
            assert list((await peer.next_tree()).token_ids) == [11, 12]

    asyncio.run(scenario())
    assert "trying again" in caplog.text


def test_a_verify_service_that_starts_as_well_is_no_news_but_a_refusal_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    link = VerifyLink("127.0.0.1:1", Worker([ngram()]), Identity("test", "127.0.0.1:2", 42, "0"))
    link._failed(UnavailableError("connection refused"))
    assert caplog.text == ""
    link._failed(FailedPreconditionError("another tokenizer"))
    assert "not attached to 127.0.0.1:1, trying again: FailedPrecondition: another tokenizer" in caplog.text
    link._patient_until = time.monotonic()
    link._failed(UnavailableError("connection refused"))
    assert "Unavailable: connection refused" in caplog.text


def test_replies_that_cannot_be_sent_cost_the_attachment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        peer = VerifyPeer()
        async with linked(peer, [ngram()]):
            first = await peer.next_epoch()
            with monkeypatch.context() as patch:
                patch.setattr(codec, "encode_replies", lambda _replies: 1 // 0)
                peer.send(open_command(stamp(first, 0, 1, REPEATING), REPEATING))
                second = await peer.next_epoch()
            peer.send(open_command(stamp(second, 0, 1, REPEATING), REPEATING))
            assert (await peer.next_tree()).stamp.epoch == second

    asyncio.run(scenario())


def test_a_message_holds_four_replies_a_slot() -> None:
    async def scenario() -> None:
        peer = VerifyPeer(num_slots=1)
        async with linked(peer, [ngram()]):
            epoch = await peer.next_epoch()
            peer.send(*(open_command(stamp(epoch, slot, 1, REPEATING), REPEATING) for slot in range(10)))
            replies = [await peer.next_reply() for _ in range(10)]
            assert [reply.WhichOneof("kind") for reply in replies].count("nack") == 9
            assert (peer.messages, peer.most_replies) == (3, 4)

    asyncio.run(scenario())


def test_the_reason_of_a_refusal_is_made_fit_to_be_sent() -> None:
    async def scenario() -> None:
        peer = VerifyPeer()
        async with linked(peer, [Refusing()]):
            epoch = await peer.next_epoch()
            peer.send(open_command(stamp(epoch, 0, 1, REPEATING), REPEATING))
            assert (await peer.next_reply()).nack.reason == "?" * 200

    asyncio.run(scenario())


def test_leaving_half_closes_the_exchange() -> None:
    async def scenario() -> None:
        peer = VerifyPeer()
        async with linked(peer, [ngram()]):
            await peer.next_epoch()
        assert peer.ended.get_nowait() == "half-closed"

    asyncio.run(scenario())


def test_backoff_doubles_to_its_limit_and_starts_anew() -> None:
    backoff = Backoff(0.1, 2.0)
    waits = [backoff.take() for _ in range(8)]
    for wait, nominal in zip(waits, [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0], strict=True):
        assert nominal / 2 <= wait <= nominal
    backoff.reset()
    assert backoff.take() <= 0.1


def test_a_share_is_told_at_attachment_and_while_it_lasts() -> None:
    async def scenario() -> None:
        peer = VerifyPeer()
        async with linked(peer, [ngram()]) as (link, _, _):
            await peer.next_epoch()
            assert not (await peer.attachments.get()).HasField("share")
            link.set_share(0.25)
            async with asyncio.timeout(60):
                while not peer.shares:  # noqa: ASYNC110 (the peer tells nobody)
                    await asyncio.sleep(0.005)
            assert peer.shares == [0.25]
            peer.drop_exchange()
            await peer.next_epoch()
            assert (await peer.attachments.get()).share == 0.25

    asyncio.run(scenario())
