"""The verify service ends again and again: no request waits without end, and none fails as the cause but the cause."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from benchmarks.lib.runner import connect, verify_state
from slipstream import AsyncClient
from slipstream.rpc.errors import SlipstreamError, UnavailableError
from support.ask import ask, ask_while, jobs, state, tokens_of, wait_until
from support.cluster import Cluster
from support.kept_verify import KeptVerify

TESTS = Path(__file__).parents[1]
KILLER = "killer"
RUNNING = 2
PATIENT_SECONDS = 400.0
"""Above what all kills of a test and the starts after them take on a machine that is busy."""
RESUME_SECONDS = 15.0
SLACK_SECONDS = 20.0
"""What a busy machine may take to deliver an error."""


@pytest.fixture
def cluster(tiny_model):
    """Of each test anew: its gateway remembers whom it has convicted."""
    with Cluster(
        tiny_model,
        draft=(f"inproc:{KILLER}=support.killer_proposer:create",),
        verify_args=("--default-proposer", "none", "--max-running", str(RUNNING)),
        gateway_args=("--resume-seconds", str(PATIENT_SECONDS)),
        env={"PYTHONPATH": os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", "")))},
    ) as started:
        yield started


def committed(cluster):
    """Tokens since the verify service began; 0 while it is away."""
    with suppress(grpc.RpcError):
        return verify_state(cluster.verify_address).committed_tokens
    return 0


def answers_calls(cluster):
    """Whether the verify service is there with its model."""
    with suppress(grpc.RpcError):
        verify_state(cluster.verify_address)
        return True
    return False


def refusal(cluster, job):
    """What a request fails with."""

    async def run():
        async with connect(cluster.gateway_grpc) as runner:
            with pytest.raises(grpc.RpcError) as raised:
                await runner.generate(job)
            return raised.value

    return asyncio.run(run())


@pytest.mark.slow
def test_those_that_queue_through_many_losses_are_answered(cluster):
    """Two at a time run; whoever queues behind them has lost more services than convict one that ran."""
    work = jobs(40, tokens=400)
    plain = tokens_of(ask(cluster, work, len(work)))

    def strike():
        for _ in range(4):
            wait_until(lambda: committed(cluster) > 20, "never running")
            cluster.kill("verify", signal.SIGKILL)
            cluster.start("verify")

    answers = ask_while(cluster, work, strike)
    for tokens, each in zip(plain, answers, strict=True):
        assert tokens_of(each) == [tokens] * len(each)
    assert "ran alone" not in cluster.logs("gateway")


@pytest.mark.slow
def test_a_request_that_kills_is_found_and_all_others_are_answered(cluster):
    work = jobs(6, tokens=400)
    plain = tokens_of(ask(cluster, work))
    deadly = replace(jobs(1, tokens=8, length=9)[0], proposer=KILLER)
    before = state(cluster).committed_tokens

    errors = []

    def kill():
        wait_until(lambda: state(cluster).committed_tokens > before, "never running")
        errors.append(refusal(cluster, deadly))
        # One that answers was started anew, after the keeper has counted the loss of the one before.
        wait_until(lambda: answers_calls(cluster), "never back")
        killed = kept.killed
        errors.append(refusal(cluster, deadly))
        assert kept.killed == killed

    with KeptVerify(cluster) as kept:
        answers = ask_while(cluster, work, kill)
    for error in errors:
        assert error.code() is grpc.StatusCode.INTERNAL
        assert "while this request ran alone" in error.details()
    assert 2 <= kept.killed <= 10  # the longer a trial takes, as on a busy machine, the less one loss says
    for tokens, each in zip(plain, answers, strict=True):
        assert tokens_of(each) == [tokens] * len(each)
    assert cluster.logs("gateway").count("ran alone") == 1


@pytest.mark.slow
def test_nobody_waits_beyond_the_deadline_however_often_the_service_comes_back(tiny_model):
    """It is back in less time than the deadline each time, and gone again before most of them get a token."""
    with Cluster(
        tiny_model,
        verify_args=("--max-running", str(RUNNING)),
        gateway_args=("--resume-seconds", str(RESUME_SECONDS)),
    ) as cluster:
        work = 4 * jobs(40, tokens=400)  # which two at a time take many seconds without a storm

        async def one(client, job):
            """The error that it ends with, if any, and how long after its latest token, or its start, that came."""
            latest = time.monotonic()
            try:
                async for event in client.stream(
                    token_ids=list(job.prompt_ids), max_tokens=job.max_tokens, seed=job.seed, ignore_eos=True
                ):
                    latest = time.monotonic() if event.token_ids else latest
            except SlipstreamError as error:
                return error, time.monotonic() - latest
            return None, 0.0

        async def run():
            async with AsyncClient(cluster.gateway_grpc) as client:
                streams = [asyncio.create_task(one(client, job)) for job in work]
                await asyncio.to_thread(wait_until, lambda: state(cluster).queued > 0, "never queued")
                storm = time.monotonic()
                while not all(stream.done() for stream in streams):
                    await asyncio.to_thread(cluster.kill, "verify", signal.SIGKILL)
                    cluster.start("verify")
                    with suppress(grpc.RpcError):
                        await asyncio.to_thread(verify_state, cluster.verify_address)
                    assert time.monotonic() < storm + 6 * RESUME_SECONDS, "requests wait without an end"
                return [await stream for stream in streams]

        outcomes = asyncio.run(run())
        failures = [(error, seconds) for error, seconds in outcomes if error is not None]
        assert failures
        for error, seconds in failures:
            assert isinstance(error, UnavailableError), error
            assert f"did not go on within {RESUME_SECONDS:g} s" in error.message
            assert error.retry_after
            assert seconds < RESUME_SECONDS + SLACK_SECONDS
