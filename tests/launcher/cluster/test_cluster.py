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
from dataclasses import dataclass
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


@dataclass
class Running:
    """A cluster of two replicas, and a gateway that follows it."""

    address: str
    directory: str
    served: tuple
    undisturbed: list

    def replicas(self):
        return {each["address"]: each for each in status(self.address)["replicas"] if each["state"] == "ready"}

    def answers_while(self, victim, action):
        """Of all streams, while something is done as soon as they run at a replica; the action's result."""
        committed = verify_state(victim).committed_tokens

        async def disturbed():
            streams = asyncio.create_task(answers(*self.served))
            await asyncio.to_thread(
                wait_until, lambda: verify_state(victim).committed_tokens > committed + 100, "no streams there"
            )
            assert not streams.done(), "the streams were too short for this test"
            await asyncio.to_thread(action)
            return await streams

        return asyncio.run(disturbed())


@pytest.fixture(scope="module")
def running():
    asks = mixed([], TOKENS)
    with two_raylets() as address:
        before = psutil.Process().children(recursive=True)
        up = slipstream("up", "--replicas", "2", "--standby", "1", "--directory-port", "0", "--draft", "inproc:ngram",
                        address=address)  # fmt: skip
        directory = re.search(r"--directory (\S+)", up)[1]
        with GatewayProcess(demo_folder("slipstream-demo"), None, "--directory", directory) as gateway:
            served = (gateway.http_url, gateway.grpc_address, [_named(ask) for ask in asks])
            yield Running(address, directory, served, asyncio.run(answers(*served)))
        slipstream("down", "--drain-seconds", "1", address=address)
    _, alive = psutil.wait_procs(before, timeout=30)
    assert not alive


def test_a_killed_controller_costs_streams_nothing_and_takes_its_replicas_over(running):
    before = running.replicas()
    (controller,) = [each for each in psutil.Process().children(recursive=True)
                     if each.cmdline()[:1] == ["ray::Controller"]]  # fmt: skip
    assert running.answers_while(next(iter(before)), controller.kill) == running.undisturbed
    told = asyncio.run(asyncio.wait_for(members_without("", running.directory), 240))
    assert set(told) == set(before), "the directory is back at its address, with the same members"
    after = running.replicas()
    assert {each["process_id"] for each in after.values()} == {each["process_id"] for each in before.values()}


def test_one_that_stands_by_and_is_lost_is_replaced(running):
    def standing():
        found = [each for each in status(running.address)["replicas"] if each["state"] == "standby"]
        return {each["number"]: each["process_id"] for each in found if each["process_id"]}

    wait_until(standing, "none stands by")
    ((number, process_id),) = standing().items()
    os.kill(process_id, signal.SIGKILL)
    wait_until(lambda: standing().keys() - {number}, "no other one stands by")


def test_streams_survive_the_kill_of_a_raylet_and_capacity_comes_back(running):
    one, two = running.replicas().values()
    assert one["node"] != two["node"], "the replicas are not spread over the nodes"
    raylets = {each["address"]: psutil.Process(each["process_id"]).parent() for each in (one, two)}
    assert {each.name() for each in raylets.values()} == {"raylet"}
    victim, raylet = next((place, each) for place, each in raylets.items() if "--head" not in " ".join(each.cmdline()))
    wait_until(lambda: _stands_by(running.address), "none stands by")
    assert running.answers_while(victim, raylet.kill) == running.undisturbed
    assert len(asyncio.run(asyncio.wait_for(members_without(victim, running.directory), 240))) == 2


def _stands_by(address):
    return any(each["state"] == "standby" and each["node"] for each in status(address)["replicas"])


def _named(ask):
    """The same request to the demo model."""
    if "model" in ask.body:
        ask.body["model"] = "slipstream-demo"
    return ask
