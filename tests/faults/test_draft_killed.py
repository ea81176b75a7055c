"""The draft service is absent, dies in mid-stream and comes back: streams go on, and no token differs."""

import asyncio
import signal
import urllib.request
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.lib.runner import connect
from support.ask import ask, jobs, state, tokens_of, wait_until
from support.cluster import Cluster, free_ports
from verify_service.draft_link.circuit_breaker import FIRST_BACKOFF, MAX_TIMEOUTS

STREAMS = 4
TOKENS = 500
DEADLINE_MS = 50
OVERDUE_SECONDS = 0.1
"""A wait beyond this bound of the histogram's was not ended by the deadline; a busy machine may wake up late."""
NOISE_SECONDS = 20.0
"""What a machine busy with restarting a service may add to a pause."""


@pytest.fixture(scope="module")
def metrics_port():
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def cluster(demo_model, demo_draft_model, metrics_port):
    """The shipped pair: its drafts are accepted."""
    arguments = ("--draft-deadline-ms", str(DEADLINE_MS), "--metrics-port", str(metrics_port))
    draft = (f"draft-model:{demo_draft_model}",)
    with Cluster(demo_model, draft=draft, verify_args=arguments, start_draft_now=False) as started:
        yield started


@pytest.fixture(scope="module")
def plain(cluster):
    return tokens_of(ask(cluster, jobs(STREAMS, tokens=TOKENS)))


def drafted_jobs():
    return [replace(job, proposer="draft-model", max_depth=3, max_nodes=4) for job in jobs(STREAMS, tokens=TOKENS)]


def waits_of(metrics_port):
    """How often steps waited for trees, and how often longer than OVERDUE_SECONDS, as the verify service measured."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=60) as response:
        families = text_string_to_metric_families(response.read().decode())
    samples = [s for family in families if family.name == "slipstream_draft_wait_seconds" for s in family.samples]
    total = next(s.value for s in samples if s.name.endswith("_count"))
    in_time = next(s.value for s in samples if s.labels.get("le") == str(OVERDUE_SECONDS))
    return total, total - in_time


def test_without_a_draft_service_at_start(cluster, plain, metrics_port):
    short = [replace(job, max_tokens=64) for job in drafted_jobs()]
    answers = ask(cluster, short)
    assert tokens_of(answers) == [tokens[:64] for tokens in plain]
    assert sum(answer.drafted for answer in answers) == 0
    assert waits_of(metrics_port)[0] == state(cluster).draft_waits == 0


def test_killed_and_restarted_in_mid_stream(cluster, plain, metrics_port):
    def wait_for_acceptance(count):
        target = state(cluster).accepted_tokens + count
        wait_until(lambda: state(cluster).accepted_tokens >= target, lambda: cluster.logs("draft"))

    async def repeat(runner, job, expected, over):
        """Answers to a request that follows itself until `over`: a restart takes longer on a busy machine."""
        answers = []
        while not over.is_set():
            answers.append(await runner.generate(job))
            assert answers[-1].token_ids == expected
        return answers

    async def run():
        over = asyncio.Event()
        async with connect(cluster.gateway_grpc) as runner:
            pairs = zip(drafted_jobs(), plain, strict=True)
            streams = asyncio.gather(*(repeat(runner, job, tokens, over) for job, tokens in pairs))
            await asyncio.to_thread(wait_for_acceptance, 20)
            alive = state(cluster)
            await asyncio.to_thread(cluster.kill, "draft", signal.SIGKILL)
            await asyncio.to_thread(wait_until, lambda: state(cluster).attachments == 0, "the attachment stayed")
            killed = state(cluster)
            # A wait counts a miss for each stream; after MAX_TIMEOUTS in a row the drafter is not waited for. On a busy
            # machine it misses some between hits before it dies.
            assert killed.draft_misses - alive.draft_misses <= 4 * STREAMS * MAX_TIMEOUTS
            await asyncio.sleep(FIRST_BACKOFF)
            await asyncio.to_thread(
                wait_until, lambda: state(cluster).committed_tokens > killed.committed_tokens, "decoding stands still"
            )
            alone = state(cluster)
            assert alone.draft_misses == killed.draft_misses
            assert alone.draft_waits - killed.draft_waits <= 1, "more than the wait that the kill ended"
            await asyncio.to_thread(cluster.start_draft)
            assert state(cluster).committed_tokens > alone.committed_tokens, "decoding stood still"
            await asyncio.to_thread(wait_for_acceptance, 20)
            over.set()
            return [answer for answers in await streams for answer in answers]

    cluster.start_draft()
    try:
        answers = asyncio.run(run())
    finally:
        cluster.kill("draft")
    assert len(answers) >= STREAMS
    assert all(answer.finish_reason == "FINISH_REASON_LENGTH" for answer in answers)
    waits, overdue = waits_of(metrics_port)
    assert overdue <= max(2, waits / 20), f"{overdue:g} of {waits:g} waits took more than {OVERDUE_SECONDS} s"
    assert max(answer.longest_pause for answer in answers) < DEADLINE_MS / 1000 + NOISE_SECONDS
