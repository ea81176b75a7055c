"""A member of the directory that serves another model than the directory says, among real verify services."""

from __future__ import annotations

import pytest

from benchmarks.lib.runner import verify_state
from launcher.cluster.directory_thread import DirectoryThread
from slipstream.directory.member import Member
from support.ask import ask, jobs, tokens_of, wait_until
from support.cluster import Cluster
from support.gateway_process import GatewayProcess

HOST = "127.0.0.1"
NAME = "tiny-target"


@pytest.fixture
def directory():
    found = DirectoryThread(HOST, 0)
    wait_until(lambda: not found.error, lambda: found.error)
    return found


@pytest.mark.slow
def test_a_member_that_serves_another_model_gets_no_request_and_costs_no_token(tiny_model, tiny_draft_model, directory):
    wanted = jobs(12, tokens=24)
    with Cluster(tiny_model, gateway=False) as honest, Cluster(tiny_draft_model, gateway=False) as liar:
        members = [Member(honest.verify_address, NAME)]
        directory.publish(members)
        with GatewayProcess(tiny_model, None, "--directory", directory.address, "--routing", "random") as gateway:
            gateway.gateway_grpc = gateway.grpc_address
            undisturbed = tokens_of(ask(gateway, wanted))
            directory.publish([*members, Member(liar.verify_address, NAME)])
            wait_until(lambda: "serves another model" in gateway.logs, lambda: gateway.logs)
            assert tokens_of(ask(gateway, wanted)) == undisturbed
            assert verify_state(liar.verify_address).prompt_tokens == 0
            assert verify_state(honest.verify_address).committed_tokens >= 2 * sum(map(len, undisturbed))
