"""The verify service dies: clients are told so at once, and all recovers by itself when it is back."""

import asyncio
import signal
from dataclasses import replace

import grpc
import httpx
import pytest

from benchmarks.runner import connect
from support.ask import ask, jobs, state, tokens_of, wait_until
from support.cluster import Cluster


@pytest.fixture(scope="module")
def cluster(tiny_model):
    with Cluster(tiny_model, draft=("ngram",), verify_args=("--num-pages", "512")) as started:
        yield started


def completion(cluster):
    body = {"model": "", "prompt": [11, 12, 13], "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    body["model"] = httpx.get(f"{cluster.http_url}/v1/models", timeout=10).json()["data"][0]["id"]
    return body


def test_clients_learn_of_it_and_the_gateway_recovers(cluster):
    body = completion(cluster)
    request = jobs(1, tokens=16)[0]
    before = tokens_of(ask(cluster, [request]))

    async def run():
        async with connect(cluster.gateway_grpc) as runner:
            long = replace(request, max_tokens=450, proposer="ngram")
            streams = [asyncio.create_task(runner.generate(long)) for _ in range(8)]
            await asyncio.to_thread(wait_until, lambda: state(cluster).running > 0, "never running")
            await asyncio.to_thread(cluster.kill, "verify", signal.SIGKILL)
            outcomes = await asyncio.gather(*streams, return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    assert isinstance(outcome, grpc.RpcError)
                    assert outcome.code() is grpc.StatusCode.UNAVAILABLE
            assert any(isinstance(outcome, BaseException) for outcome in outcomes)
            with pytest.raises(grpc.RpcError) as raised:
                await runner.generate(request)
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE

    asyncio.run(run())
    refused = httpx.post(f"{cluster.http_url}/v1/completions", json=body, timeout=10)
    assert refused.status_code == 503
    assert refused.json()["error"]["message"]
    assert httpx.get(f"{cluster.http_url}/ready", timeout=10).status_code == 503
    assert httpx.get(f"{cluster.http_url}/health", timeout=10).status_code == 200

    cluster.start("verify")
    cluster.wait_ready()  # the draft service attaches again by itself
    ready = f"{cluster.http_url}/ready"
    wait_until(lambda: httpx.get(ready, timeout=10).status_code == 200, lambda: cluster.logs("gateway"))
    assert httpx.post(f"{cluster.http_url}/v1/completions", json=body, timeout=10).status_code == 200
    assert tokens_of(ask(cluster, [replace(request, proposer="ngram")])) == before


def test_streams_are_resumed_where_the_gateway_may_wait(tiny_model):
    work = [replace(job, max_tokens=400, logprobs=2) for job in jobs(6, tokens=400)]
    with Cluster(tiny_model, gateway_args=("--resume-seconds", "90")) as cluster:
        plain = ask(cluster, work)

        async def run():
            async with connect(cluster.gateway_grpc) as runner:
                streams = asyncio.create_task(runner.run(work, len(work)))
                committed = state(cluster).committed_tokens
                await asyncio.to_thread(
                    wait_until, lambda: state(cluster).committed_tokens > committed + 60, "never running"
                )
                await asyncio.to_thread(cluster.kill, "verify", signal.SIGKILL)
                assert not streams.done()
                cluster.start("verify")
                return await streams

        answers = asyncio.run(run())
    assert tokens_of(answers) == tokens_of(plain)
    assert [answer.logprobs for answer in answers] == [answer.logprobs for answer in plain]
