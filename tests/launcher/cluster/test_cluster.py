"""`slipstream cluster` on two raylets of this machine: a raylet is killed under streams, and no token changes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from benchmarks.lib.runner import verify_state
from launcher.services.models import demo_folder
from slipstream.directory.client import RemoteDirectory
from support.ask import wait_until
from support.cluster import free_ports
from support.gateway_process import GatewayProcess
from support.mixed_requests import answers, mixed

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed, which the extra `cluster` brings"),
    pytest.mark.skipif(sys.platform != "linux", reason="parent-death signals are Linux's"),
]
TOKENS = 240


def slipstream(*arguments, address):
    """`slipstream cluster ...`; what it prints."""
    command = [sys.executable, "-m", "launcher", "cluster", *arguments, "--address", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def status(address):
    return json.loads(slipstream("status", "--json", address=address))


@contextlib.contextmanager
def two_raylets():
    """The address of the head; each node has room for two replicas."""
    from launcher.cluster.ray_session import start_ray

    with tempfile.TemporaryDirectory(prefix="ray") as folder, contextlib.ExitStack() as stack:
        started = []
        stack.callback(lambda: [node.process.wait(30) for node in started])
        for index in range(2):
            address = started[0].address if started else ""
            own = () if started else ("--temp-dir", folder, "--ray-client-server-port", str(free_ports(1)[0]))
            flags = ("--num-cpus=2", "--num-gpus=0", *own)
            log = Path(folder) / f"node{index}.log"
            started.append(start_ray(log, address=address, port=free_ports(1)[0], flags=flags))
            stack.callback(started[-1].process.signal, signal.SIGTERM)
        yield started[0].address


async def members_without(address, directory):
    """The members that serve, once another one has taken the place of that at an address."""
    async for members in RemoteDirectory(directory).watch():
        serving = [each.address for each in members if not each.draining]
        if address not in serving and len(serving) == 2:
            return serving
    return []


def test_streams_survive_the_kill_of_a_raylet_and_capacity_comes_back():
    asks = mixed([], TOKENS)
    with two_raylets() as address:
        head = psutil.Process().children(recursive=True)
        up = slipstream("up", "--replicas", "2", "--directory-port", "0", "--draft", "inproc:ngram", address=address)
        directory = re.search(r"--directory (\S+)", up)[1]
        with GatewayProcess(demo_folder("slipstream-demo"), None, "--directory", directory) as gateway:
            served = (gateway.http_url, gateway.grpc_address, [_named(ask) for ask in asks])
            undisturbed = asyncio.run(answers(*served))
            one, two = status(address)["replicas"]
            assert one["node"] != two["node"], "the replicas are not spread over the nodes"
            raylets = {each["address"]: psutil.Process(each["process_id"]).parent() for each in (one, two)}
            assert {each.name() for each in raylets.values()} == {"raylet"}
            victim, raylet = next(
                (place, each) for place, each in raylets.items() if "--head" not in " ".join(each.cmdline())
            )
            committed = verify_state(victim).committed_tokens

            async def disturbed():
                streams = asyncio.create_task(answers(*served))
                await asyncio.to_thread(
                    wait_until, lambda: verify_state(victim).committed_tokens > committed + 100, "no streams there"
                )
                assert not streams.done(), "the streams were too short for this test"
                os.kill(raylet.pid, signal.SIGKILL)
                return await streams

            assert asyncio.run(disturbed()) == undisturbed
            assert len(asyncio.run(asyncio.wait_for(members_without(victim, directory), 90))) == 2
        slipstream("down", "--drain-seconds", "1", address=address)
    _, alive = psutil.wait_procs(head, timeout=30)
    assert not alive


def _named(ask):
    """The same request to the demo model."""
    if "model" in ask.body:
        ask.body["model"] = "slipstream-demo"
    return ask
