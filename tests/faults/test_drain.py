"""SIGTERM during 16 streams: they finish, new requests are refused with a clear status."""

import asyncio
import signal

import grpc
import httpx
import pytest

from benchmarks.lib.runner import connect
from support.ask import ask, jobs, state, tokens_of, wait_until
from support.cluster import Cluster
from support.models import make_tiny_model

STREAMS = 16
TOKENS = 160
PATIENT = ("--drain-seconds", "200")
"""The default may be too short for a machine that is busy otherwise."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Large enough that streams are still running when the refusals are asked for."""
    folder = tmp_path_factory.mktemp("drain") / "model"
    return make_tiny_model(folder, hidden_size=512, intermediate_size=2048, layers=8, heads=8, kv_heads=2)


def drains(cluster, service):
    if service == "verify":
        return state(cluster).draining
    return httpx.get(f"{cluster.http_url}/ready", timeout=60).status_code == 503


@pytest.mark.parametrize("service", ["gateway", "verify"])
@pytest.mark.slow
def test_streams_finish_and_new_requests_are_refused(model, service):
    with Cluster(model, draft=("ngram",), verify_args=PATIENT, gateway_args=PATIENT) as cluster:
        work = jobs(STREAMS, tokens=TOKENS, length=8)
        plain = tokens_of(ask(cluster, work, STREAMS))
        model_name = httpx.get(f"{cluster.http_url}/v1/models", timeout=60).json()["data"][0]["id"]

        async def run():
            async with connect(cluster.gateway_grpc) as runner:
                streams = asyncio.create_task(runner.run(work, STREAMS))
                await asyncio.to_thread(wait_until, lambda: state(cluster).running == STREAMS, "never all running")
                cluster.processes[service].send_signal(signal.SIGTERM)
                await asyncio.to_thread(wait_until, lambda: drains(cluster, service), "never drained")
                assert not streams.done(), "the streams were too short for this test"
                with pytest.raises(grpc.RpcError) as raised:
                    await runner.generate(work[0])
                async with httpx.AsyncClient(base_url=cluster.http_url, timeout=60) as client:
                    body = {"model": model_name, "prompt": [11, 12], "max_tokens": 2}
                    try:
                        refusal = (await client.post("/v1/completions", json=body)).status_code
                    except httpx.ConnectError:
                        refusal = "connection refused"
                return raised.value.code(), refusal, await streams

        code, refusal, answers = asyncio.run(run())
        assert code is grpc.StatusCode.UNAVAILABLE
        assert refusal in (503, "connection refused") if service == "gateway" else refusal == 503
        assert tokens_of(answers) == plain
        assert all(answer.finish_reason == "FINISH_REASON_LENGTH" for answer in answers)
        wait_until(lambda: cluster.processes[service].poll() is not None, "did not exit after draining")
        assert cluster.processes[service].returncode == 0
