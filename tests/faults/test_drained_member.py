"""A verify service that a directory says drains: its streams move to another one without a changed token."""

import asyncio
import re
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from benchmarks.lib.runner import verify_state
from support.ask import wait_until
from support.cluster import Cluster
from support.gateway_process import GatewayProcess
from support.mixed_requests import Ask, answers, mixed

TOKENS = 300
SCHEMA = {"type": "array", "items": {"type": "integer"}, "minItems": 40, "maxItems": 40}


@contextmanager
def directory(path):
    """`slipstream directory` of a file; its address."""
    command = [sys.executable, "-m", "launcher", "directory", str(path), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stderr:
                if found := re.search(r"listening grpc=(\S+)", line):
                    break
            yield found[1]
        finally:
            process.terminate()
            process.stderr.read()
    assert process.returncode == 0


def write(path, *addresses, draining=()):
    fresh = path.with_suffix(".new")
    fresh.write_text(
        "".join(
            f"[[members]]\naddress = '{address}'\ndraining = {str(address in draining).lower()}\n"
            for address in addresses
        )
    )
    fresh.replace(path)


def is_known(gateway, address):
    """Whether a gateway has met the service at an address: requests that are still to come find it ready."""
    services = httpx.get(f"{gateway.http_url}/services", timeout=30).json()["verify_services"]
    return any(each["address"] == address and each["ready"] for each in services)


@pytest.mark.slow
def test_all_kinds_of_streams_move_without_a_changed_token(tiny_model, tmp_path):
    path = tmp_path / "members.toml"
    structured = {
        "model": "tiny", "prompt": "Numbers:", "max_tokens": TOKENS, "temperature": 0.8, "seed": 9, "n": 2,
        "return_token_ids": True, "structured_outputs": {"json": SCHEMA}, "logprobs": 1,
    }  # fmt: skip
    asks = 2 * [*mixed([], TOKENS), *(Ask("completions", structured | {"seed": seed}) for seed in range(4))]
    model = ("--model-name", "tiny")
    with ExitStack() as stack:
        one, two = (
            stack.enter_context(Cluster(tiny_model, draft=draft, gateway=False, verify_args=model)).verify_address
            for draft in (("inproc:ngram",), ())
        )
        write(path, one)
        told = ("--directory", stack.enter_context(directory(path)))
        gateway = stack.enter_context(GatewayProcess(tiny_model, None, *told))
        served = (gateway.http_url, gateway.grpc_address, asks)
        undisturbed = asyncio.run(answers(*served))

        async def run():
            streams = asyncio.create_task(answers(*served))
            former, moves = one, 0
            committed = {one: verify_state(one).committed_tokens}
            for _ in range(2):
                await asyncio.to_thread(
                    wait_until,
                    lambda former=former: (
                        streams.done() or verify_state(former).committed_tokens > committed[former] + 300
                    ),
                    "the streams did not go on",
                )
                if streams.done():  # which a crowded machine may let be over before anybody has looked again
                    break
                moves += 1
                later = two if former == one else one
                write(path, one, two)
                await asyncio.to_thread(wait_until, lambda: is_known(gateway, two), "the gateway did not meet it", 30.0)
                committed[later] = verify_state(later).committed_tokens
                write(path, one, two, draining=(former,))
                await asyncio.to_thread(
                    wait_until, lambda former=former: verify_state(former).running + verify_state(former).queued == 0,
                    "the member was not emptied", 5.0,
                )  # fmt: skip
                former = later
            assert moves, "the streams were too short for this test"
            return await streams

        assert asyncio.run(run()) == undisturbed
