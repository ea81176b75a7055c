"""The draft service is absent, dies in mid-stream and comes back: streams go on, and no token differs."""

import asyncio
import signal
from dataclasses import replace

import pytest

from benchmarks.runner import connect
from support.ask import ask, jobs, state, tokens_of, wait_until
from support.cluster import Cluster

STREAMS = 4
TOKENS = 1400
DEADLINE_MS = 50
NOISE_SECONDS = 1.5
"""What a machine busy with restarting a service may add to a pause."""


@pytest.fixture(scope="module")
def cluster(demo_model, demo_draft_model):
    """The shipped pair: a target slow enough that streams outlast a restart, a draft quick enough to catch up."""
    arguments = ("--draft-deadline-ms", str(DEADLINE_MS))
    draft = (f"draft-model:{demo_draft_model}",)
    with Cluster(demo_model, draft=draft, verify_args=arguments, start_draft_now=False) as started:
        yield started


@pytest.fixture(scope="module")
def plain(cluster):
    return tokens_of(ask(cluster, jobs(STREAMS, tokens=TOKENS)))


def drafted_jobs():
    return [replace(job, proposer="draft-model", max_depth=3, max_nodes=4) for job in jobs(STREAMS, tokens=TOKENS)]


def test_without_a_draft_service_at_start(cluster, plain):
    short = [replace(job, max_tokens=64) for job in drafted_jobs()]
    answers = ask(cluster, short)
    assert tokens_of(answers) == [tokens[:64] for tokens in plain]
    assert sum(answer.drafted for answer in answers) == 0


def test_killed_and_restarted_in_mid_stream(cluster, plain):
    def wait_for_acceptance(count):
        target = state(cluster).accepted_tokens + count
        wait_until(lambda: state(cluster).accepted_tokens >= target, lambda: cluster.logs("draft"), 60)

    async def run():
        async with connect(cluster.gateway_grpc) as runner:
            streams = asyncio.create_task(runner.run(drafted_jobs(), STREAMS))
            await asyncio.to_thread(wait_for_acceptance, 20)
            await asyncio.to_thread(cluster.kill, "draft", signal.SIGKILL)
            killed = state(cluster)
            assert killed.running == STREAMS
            await asyncio.to_thread(cluster.start_draft)
            attached = state(cluster)
            assert attached.committed_tokens > killed.committed_tokens, "decoding stood still"
            assert attached.running == STREAMS, "streams ended before the drafter was back"
            await asyncio.to_thread(wait_for_acceptance, 20)
            assert state(cluster).running > 0, "accepted only after the streams had ended"
            return await streams

    cluster.start_draft()
    answers = asyncio.run(run())
    assert tokens_of(answers) == plain
    assert all(answer.finish_reason == "FINISH_REASON_LENGTH" for answer in answers)
    assert max(answer.longest_pause for answer in answers) < DEADLINE_MS / 1000 + NOISE_SECONDS
