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
from support.mixed_requests import Ask, answers, answers_while, mixed

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


def resumed(gateway):
    """How many choices have gone on at another service."""
    lines = httpx.get(f"{gateway.http_url}/metrics", timeout=60).text.splitlines()
    (value,) = [line.split()[1] for line in lines if line.startswith("slipstream_gateway_resumed_choices_total ")]
    return float(value)


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

        def drain_twice():
            committed = {each: verify_state(each).committed_tokens for each in (one, two)}
            for former, later in ((one, two), (two, one)):
                wait_until(
                    lambda former=former: verify_state(former).committed_tokens > committed[former] + 300,
                    "the streams did not go on",
                )
                write(path, one, two)
                wait_until(lambda: is_known(gateway, two), "the gateway did not meet it")
                committed[later], moved = verify_state(later).committed_tokens, resumed(gateway)
                write(path, one, two, draining=(former,))
                wait_until(
                    lambda former=former: verify_state(former).running + verify_state(former).queued == 0,
                    "the member was not emptied",
                )
                wait_until(lambda moved=moved: resumed(gateway) > moved, "no stream moved")

        for said, others in zip(undisturbed, asyncio.run(answers_while(*served, drain_twice)), strict=True):
            assert others == [said] * len(others)
