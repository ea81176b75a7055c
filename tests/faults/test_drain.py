"""SIGTERM during 16 streams: they finish, new requests are refused with a clear status."""

import asyncio
import signal
import threading
from dataclasses import replace

import grpc
import httpx
import pytest

from benchmarks.lib.runner import connect
from support.ask import ask, jobs, state, tokens_of, wait_until
from support.cluster import Cluster
from support.hostile import HostileDrafter

STREAMS = 16
TOKENS = 160
PATIENT = ("--drain-seconds", "200")
"""The default may be too short for a machine that is busy otherwise."""
SLOW = ("--proposers", "slow", "--default-proposer", "none", "--draft-deadline-ms", "5000")
TREE_SECONDS = 0.01
"""A step of all streams takes so long for each of them, and they last until nobody needs them to."""


def drains(cluster, service):
    if service == "verify":
        return state(cluster).draining
    return httpx.get(f"{cluster.http_url}/ready", timeout=60).status_code == 503


@pytest.mark.parametrize("service", ["gateway", "verify"])
@pytest.mark.slow
def test_streams_finish_and_new_requests_are_refused(tiny_model, service):
    over = threading.Event()

    def late(wanted):
        over.wait(TREE_SECONDS)
        return [wanted.tree([5], [-1])]

    with (
        Cluster(tiny_model, verify_args=(*PATIENT, *SLOW), gateway_args=PATIENT) as cluster,
        HostileDrafter(cluster.verify_address, late, name="slow"),
    ):
        work = jobs(STREAMS, tokens=TOKENS, length=8)
        plain = tokens_of(ask(cluster, work, STREAMS))
        slow = [replace(job, proposer="slow", max_nodes=4) for job in work]
        model_name = httpx.get(f"{cluster.http_url}/v1/models", timeout=60).json()["data"][0]["id"]

        async def run():
            async with connect(cluster.gateway_grpc) as runner:
                streams = asyncio.create_task(runner.run(slow, STREAMS))
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
                over.set()
                return raised.value.code(), refusal, await streams

        code, refusal, answers = asyncio.run(run())
        assert code is grpc.StatusCode.UNAVAILABLE
        assert refusal in (503, "connection refused") if service == "gateway" else refusal == 503
        assert tokens_of(answers) == plain
        assert all(answer.finish_reason == "FINISH_REASON_LENGTH" for answer in answers)
        wait_until(lambda: cluster.processes[service].poll() is not None, "did not exit after draining")
        assert cluster.processes[service].returncode == 0
