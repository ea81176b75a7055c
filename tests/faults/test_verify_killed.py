"""The verify service dies: streams go on where they stood once it is back, and fail in time where it stays away."""

import asyncio
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace

import grpc
import httpx
import psutil
import pytest

from benchmarks.lib.runner import connect, verify_state
from support.ask import ask, jobs, state, tokens_of, wait_until
from support.cluster import Cluster
from support.mixed_requests import answers, answers_while, mixed
from support.serve_process import start

TOKENS = 300
BLOWS = (signal.SIGKILL, signal.SIGSTOP)
"""What hangs is killed by the launcher."""
HANG_SECONDS = 8


LIMITS = ("--resume-seconds", "240", "--drain-seconds", "2")


@contextmanager
def serve(model, log, *arguments):
    served = start(model, ("ngram",), log, *LIMITS, *arguments)
    with served.process:
        yield served
        served.process.terminate()


@pytest.fixture
def served(tiny_model, tmp_path):
    limits = ("--max-restarts", str(len(BLOWS) + 1), "--hang-seconds", str(HANG_SECONDS))
    with serve(tiny_model, tmp_path / "log", *limits) as served:
        yield served


def late_piece(text, length=4):
    """A piece of `text` that comes late in it for the first time."""
    return max((text[at : at + length] for at in range(len(text) * 3 // 4)), key=text.find)


def test_killed_and_hung_under_streams_it_changes_no_token(served):
    (probe, *_) = mixed([], TOKENS)
    texts = [one[0] for one in asyncio.run(answers(served.http, served.grpc, [probe]))]
    asks = mixed([late_piece(text) for text in texts], TOKENS)
    assert len(asks) == 16
    undisturbed = asyncio.run(answers(served.http, served.grpc, asks))
    committed = verify_state(served.verify).committed_tokens

    def strike():
        former, least = None, committed + 500
        for blow in BLOWS:
            facts = served.wait_for(lambda facts, former=former: facts.verify.process_id not in (None, former))
            wait_until(lambda least=least: moved_on(served, least), "never running")
            former, least = facts.verify.process_id, 500
            os.kill(former, blow)
        served.wait_for(lambda facts, former=former: facts.verify.process_id not in (None, former))

    disturbed = asyncio.run(answers_while(served.http, served.grpc, asks, strike))
    for one, others in zip(undisturbed, disturbed, strict=True):
        for other in others:
            assert one == other
    metrics = httpx.get(f"{served.http}/metrics", timeout=60).text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in metrics if line.startswith("slipstream_gateway_"))
    assert float(values["slipstream_gateway_resumed_choices_total"]) >= 16
    assert float(values["slipstream_gateway_paused_choices"]) == 0


def moved_on(served, committed):
    """Whether the verify service is there and has come so far since it began."""
    with suppress(grpc.RpcError):
        return verify_state(served.verify).committed_tokens >= committed
    return False


def kill_verify(launcher):
    """As soon as it is there, so that it commits nothing."""
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(launcher).children():
            with suppress(psutil.NoSuchProcess):
                if "verify_service" in child.cmdline():
                    child.kill()


@pytest.fixture
def one_at_a_time(tiny_model, tmp_path):
    """128 choices take it many seconds, so that no blow comes too late."""
    with serve(tiny_model, tmp_path / "log", "--max-restarts", "2", "--max-running", "1") as served:
        yield served


def test_killed_too_often_it_is_given_up_and_clients_are_told(one_at_a_time):
    served = one_at_a_time
    body = {"model": "tiny", "prompt": "a", "max_tokens": 500, "ignore_eos": True, "n": 128, "stream": True}
    with (
        httpx.stream("POST", f"{served.http}/v1/completions", json=body, timeout=180) as reply,
        ThreadPoolExecutor(1) as reader,
    ):
        lines = reader.submit(lambda: [line for line in reply.iter_lines() if line])
        wait_until(lambda: moved_on(served, 1), "never running")
        while served.process.poll() is None:
            kill_verify(served.process.pid)
            time.sleep(0.05)
        *_, last = lines.result()
    assert "service_unavailable_error" in last
    assert served.process.returncode == 1


@pytest.mark.slow
def test_without_a_restart_clients_learn_of_it_in_time_and_the_gateway_recovers(tiny_model):
    with Cluster(
        tiny_model,
        draft=("ngram",),
        verify_args=("--num-pages", "512", "--max-running", "1"),
        gateway_args=("--resume-seconds", "2"),
    ) as cluster:
        body = {"model": "tiny-target", "prompt": [11, 12, 13], "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        request = jobs(1, tokens=16)[0]
        before = tokens_of(ask(cluster, [request]))

        async def run():
            async with (
                connect(cluster.gateway_grpc) as runner,
                httpx.AsyncClient(base_url=cluster.http_url, timeout=60) as web,
            ):
                long = replace(request, max_tokens=450, proposer="ngram")
                # One at a time they take many seconds, so that the blow comes in time.
                streams = [asyncio.create_task(runner.generate(long)) for _ in range(64)]
                whole = asyncio.create_task(web.post("/v1/completions", json={**body, "max_tokens": 450, "n": 64}))
                await asyncio.to_thread(wait_until, lambda: state(cluster).running > 0, "never running")
                await asyncio.to_thread(cluster.kill, "verify", signal.SIGKILL)
                outcomes = await asyncio.gather(*streams, return_exceptions=True)
                failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
                assert failures
                for failure in failures:
                    assert isinstance(failure, grpc.RpcError)
                    assert failure.code() is grpc.StatusCode.UNAVAILABLE
                    assert "did not go on within 2 s" in failure.details()
                reply = await whole
                assert reply.status_code == 503, "asked for whole, it may still learn of it by its status"
                assert "did not go on within 2 s" in reply.json()["error"]["message"]
                with pytest.raises(grpc.RpcError) as raised:
                    await runner.generate(request)
                assert raised.value.code() is grpc.StatusCode.UNAVAILABLE

        asyncio.run(run())
        refused = httpx.post(f"{cluster.http_url}/v1/completions", json=body, timeout=60)
        assert refused.status_code == 503
        assert refused.json()["error"]["message"]
        assert httpx.get(f"{cluster.http_url}/ready", timeout=60).status_code == 503
        assert httpx.get(f"{cluster.http_url}/health", timeout=60).status_code == 200

        cluster.start("verify")
        cluster.wait_ready()  # the draft service attaches again by itself
        ready = f"{cluster.http_url}/ready"
        wait_until(lambda: httpx.get(ready, timeout=60).status_code == 200, lambda: cluster.logs("gateway"))
        answer = httpx.post(f"{cluster.http_url}/v1/completions", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        assert tokens_of(ask(cluster, [replace(request, proposer="ngram")])) == before
