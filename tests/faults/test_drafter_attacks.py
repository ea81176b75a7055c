"""Drafters that flood, scribble, attach twice or hang, on both transports of a CPU.

Every token is as without them, no request fails, and verify holds no more memory and descriptors than before.
"""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import threading
from dataclasses import replace

import grpc
import pytest

from benchmarks.lib.runner import connect
from slipstream.v1 import draft_pb2
from support.ask import ask, jobs, state, tokens_of, wait_until
from support.cluster import Cluster
from support.hostile import HostileDrafter
from support.second_draft import draft_service
from support.shared_memory import descriptors_of, rings_of

DEADLINE_MS = 40
TOKENS = 400
STREAMS = 6


@pytest.fixture(scope="module", params=[pytest.param("grpc", marks=pytest.mark.slow), "shm"])
def cluster(request, tiny_model):
    names = ("--proposers", "hostile,ngram", "--default-proposer", "none")
    arguments = (*names, "--draft-deadline-ms", str(DEADLINE_MS), "--transports", request.param)
    with Cluster(tiny_model, verify_args=arguments) as started:
        started.transport = request.param
        yield started


@pytest.fixture(scope="module")
def plain(cluster):
    return tokens_of(ask(cluster, jobs(STREAMS, tokens=TOKENS)))


@pytest.fixture(autouse=True)
def nothing_is_left(cluster, plain):
    """Whatever a drafter does, verify is as before once it has gone."""
    process = cluster.processes["verify"].pid
    wait_until(lambda: state(cluster).attachments == 0, "somebody stayed attached")
    before = descriptors_of(process)
    yield
    wait_until(lambda: state(cluster).attachments == 0, "somebody stayed attached")
    wait_until(lambda: rings_of(process) == 0, lambda: f"{rings_of(process)} rings stayed")
    # Connections of clients come and go.
    wait_until(
        lambda: descriptors_of(process) <= before + 4, lambda: f"{descriptors_of(process)} open, {before} before"
    )
    assert state(cluster).running == 0


def drafted(proposer="hostile", **fields):
    return [replace(job, proposer=proposer, **fields) for job in jobs(STREAMS, tokens=TOKENS)]


def hostile(cluster, answer, **fields):
    return HostileDrafter(cluster.verify_address, answer, transport=cluster.transport, **fields)


def test_garbage_costs_the_sender_its_attachment(cluster, plain):
    with hostile(cluster, lambda wanted: os.urandom(60) + b"\xff\xff") as drafter:
        answers = ask(cluster, drafted())
        assert drafter.wait_ended() is grpc.StatusCode.INVALID_ARGUMENT
    assert tokens_of(answers) == plain


def test_stale_stamps_are_dropped_and_a_flood_of_them_ends_the_attachment(cluster, plain):
    before = state(cluster)

    def old(wanted):
        return [wanted.tree([5], [-1], stamp=wanted.stamped(base_length=1))] * 60

    with hostile(cluster, old) as drafter:
        answers = ask(cluster, drafted())
        assert drafter.wait_ended() is grpc.StatusCode.INVALID_ARGUMENT
    assert tokens_of(answers) == plain
    assert state(cluster).stale_records >= before.stale_records + 60


def test_a_flood_of_messages_ends_the_attachment(cluster, plain):
    with hostile(cluster, lambda wanted: []) as drafter:

        def flood():
            message = draft_pb2.ExchangeRequest().SerializeToString()
            for _ in range(100_000):
                if drafter.status is not None:
                    return
                drafter.send(message)

        flooding = threading.Thread(target=flood)
        flooding.start()
        answers = ask(cluster, drafted())
        assert drafter.wait_ended() is grpc.StatusCode.INVALID_ARGUMENT
        flooding.join(60)
    assert tokens_of(answers) == plain


def test_one_that_attaches_again_and_again_leaves_nothing(cluster, plain):
    """Each newcomer offers the same proposer, and all but the last one leave without a word."""
    answers = {}

    def run():
        answers["all"] = ask(cluster, drafted())

    asking = threading.Thread(target=run)
    asking.start()
    for _ in range(10):
        with hostile(cluster, lambda wanted: [wanted.chain([7, 8])]):
            pass
    asking.join()
    assert tokens_of(answers["all"]) == plain


def test_two_exchanges_of_one_attachment_and_two_attachments_at_once(cluster, plain):
    with (
        hostile(cluster, lambda wanted: [wanted.chain([7, 8])]) as first,
        hostile(cluster, lambda wanted: [wanted.tree([9], [-1])]) as second,
    ):
        with pytest.raises(grpc.RpcError) as raised:
            next(iter(first.exchange_again()))
        assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        answers = ask(cluster, drafted())
        assert (first.status, second.status) == (None, None)
        assert second.wishes > 0
    assert tokens_of(answers) == plain


SCRIBBLES = {
    "written ahead": (1, 64, 2**40),
    "written back": (1, 64, 0),
    "written by one": (1, 64, 17),
    "read ahead": (0, 128, 2**63),
    "lengths": (1, 4096 + 24, 2**64 - 1),
}


@pytest.mark.parametrize("kind", SCRIBBLES)
def test_indices_scribbled_over_cost_the_sender_its_attachment(cluster, plain, kind):
    if cluster.transport != "shm":
        pytest.skip("there is no ring")
    ring, offset, value = SCRIBBLES[kind]

    def scribble(wanted):
        struct.pack_into("<Q", drafter.rings[ring].segment.memory, offset, value)
        if offset >= 4096:
            struct.pack_into("<Q", drafter.rings[ring].segment.memory, 64, 4096)
        return []

    with hostile(cluster, scribble) as drafter:
        answers = ask(cluster, drafted())
        assert drafter.wait_ended() is grpc.StatusCode.INVALID_ARGUMENT
    assert tokens_of(answers) == plain


def test_the_whole_ring_scribbled_over_all_the_time_changes_no_token(cluster, plain):
    if cluster.transport != "shm":
        pytest.skip("there is no ring")
    over = threading.Event()
    with hostile(cluster, lambda wanted: [wanted.chain([7, 8])]) as drafter:

        def scribble():
            memories = [ring.segment.memory for ring in drafter.rings]
            while not over.wait(0.0005):
                for memory in memories:
                    at = 4096 + 8 * int.from_bytes(os.urandom(2), "little") % (len(memory) - 8192)
                    memory[at : at + 512] = os.urandom(512)

        scribbling = threading.Thread(target=scribble)
        scribbling.start()
        answers = ask(cluster, drafted())
        over.set()
        scribbling.join(10)
    assert tokens_of(answers) == plain


def under_streams(cluster, during, **fields):
    before = state(cluster).committed_tokens

    async def run():
        async with connect(cluster.gateway_grpc) as runner:
            streams = asyncio.create_task(runner.run(drafted(**fields), STREAMS))
            await asyncio.to_thread(wait_until, lambda: state(cluster).committed_tokens > before, "never ran")
            await asyncio.to_thread(during)
            return await streams

    return asyncio.run(run())


def test_one_that_hangs_holds_nobody_up(cluster, plain):
    with draft_service(cluster, "ngram") as drafter:

        def hang():
            drafter.signal(signal.SIGSTOP)
            try:
                assert tokens_of(ask(cluster, drafted("ngram"))) == plain
                wait_until(lambda: state(cluster).running == 0, "streams hang")
            finally:
                drafter.signal(signal.SIGCONT)

        before = state(cluster)
        answers = under_streams(cluster, hang, proposer="ngram")
        after = state(cluster)
        assert tokens_of(answers) == plain
        assert after.draft_waits - before.draft_waits < TOKENS
        # Having caught up with all that it missed it drafts again.
        served = sum(drafter.hits for drafter in after.drafters)
        wait_until(lambda: ask(cluster, drafted("ngram")) and hits(cluster) > served, "drafts no more")


def hits(cluster):
    return sum(drafter.hits for drafter in state(cluster).drafters)
