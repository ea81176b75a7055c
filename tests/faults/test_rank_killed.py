"""One of the processes that share a model dies: the verify service says so and ends, and no request is left waiting."""

import asyncio
import signal

import grpc
import psutil
import pytest

from benchmarks.lib.runner import connect
from support.ask import jobs, state, wait_until
from support.cluster import Cluster
from support.models import make_tiny_model

SHARED = ("--tensor-parallel-size", "2", "--max-running", "4", "--max-nodes", "1", "--step-nodes", "0",
          "--num-pages", "128", "--prefill-chunk", "64")  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model"), heads=4, kv_heads=2)


def follower_of(cluster):
    (follower,) = psutil.Process(cluster.processes["verify"].pid).children()
    return follower


@pytest.mark.slow
def test_a_killed_follower_ends_the_service(model):
    work = jobs(1, tokens=450) * 64  # which take it many seconds, so that the blow comes in time
    with Cluster(model, verify_args=SHARED, gateway_args=("--resume-seconds", "0")) as cluster:
        follower = follower_of(cluster)

        async def run():
            async with connect(cluster.gateway_grpc) as runner:
                streams = asyncio.gather(*map(runner.generate, work), return_exceptions=True)
                await asyncio.to_thread(wait_until, lambda: state(cluster).committed_tokens > 3, "never running")
                follower.send_signal(signal.SIGKILL)
                outcomes = await asyncio.wait_for(streams, 60)
            return {outcome.code() for outcome in outcomes if isinstance(outcome, grpc.RpcError)}

        assert asyncio.run(run()) == {grpc.StatusCode.UNAVAILABLE}  # no error of this service: streams could go on
        assert cluster.processes["verify"].wait(60) == 1
        log = cluster.logs("verify")
        assert "rank 1 of the model has ended with status -9" in log or "RankError: rank 0 of 2" in log


@pytest.mark.slow
def test_a_follower_does_not_outlive_a_killed_service(model):
    with Cluster(model, gateway=False, verify_args=SHARED) as cluster:
        follower = follower_of(cluster)
        cluster.kill("verify")
        follower.wait(120)


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        ("3", "num_key_value_heads is 2, which does not divide among 3 ranks"),
        ("8", "num_key_value_heads is 2, which does not divide among 8 ranks"),
    ],
)
def test_a_size_that_does_not_divide_the_model_is_refused(model, forks, size, reason):
    ended = forks.run("verify_service", "--model", str(model), "--port", "0", "--tensor-parallel-size", size)
    assert ended.status == 1
    assert reason in ended.output
