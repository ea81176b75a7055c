"""`slipstream info` beside any service finds the others, which run on hosts of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from launcher.services.process import ServiceCommand, ServiceProcess, Spawner
from support.hosts import Host, can_make_namespaces, namespaces

START_SECONDS = 240.0
TOKEN = "a-secret-of-this-test"
SERVICES = ("verify", "draft", "gateway")


@pytest.fixture(scope="module")
def hosts(tiny_model) -> Iterator[dict[str, Host]]:
    """Hosts that run a service each, which listen on all their addresses and advertise none."""
    if not can_make_namespaces():
        pytest.skip("needs hosts with a network of their own: root on Linux")
    with namespaces(SERVICES) as hosts, ExitStack() as stack:
        verify = f"{hosts['verify'].address}:50052"
        everywhere = ("--host", "0.0.0.0")
        arguments = {
            "verify": ("verify_service", "--model", str(tiny_model), *everywhere),
            "draft": ("draft_service", "--verify", verify, "--proposers", "ngram", *everywhere),
            "gateway": ("gateway", "--verify", verify, "--model", str(tiny_model), *everywhere),
        }
        environment = {f"SLIPSTREAM_{name}_ATTACH_TOKEN": TOKEN for name in ("VERIFY", "DRAFT")}
        spawner = Spawner()
        for name, own in arguments.items():
            command = (*hosts[name].prefix, sys.executable, "-m", *own)
            process = ServiceProcess(ServiceCommand(name, command, "", environment), spawner)
            stack.callback(process.stop, grace=10)
        yield hosts


def info(hosts: dict[str, Host], beside: str) -> tuple[int, dict]:
    variables = [f"SLIPSTREAM_{name.upper()}_ADDRESS={hosts[name].address}:{port}"
                 for name, port in (("verify", 50052), ("gateway", 8000))]  # fmt: skip
    command = [*hosts[beside].prefix, "env", *variables, sys.executable, "-m", "launcher", "info", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    return run.returncode, json.loads(run.stdout)


@pytest.mark.parametrize("beside", SERVICES)
def test_info_finds_the_others(hosts, beside):
    deadline = time.monotonic() + START_SECONDS
    while (found := info(hosts, beside))[0] or not found[1]["drafts"]:
        assert time.monotonic() < deadline, found
    facts = found[1]
    assert [facts[name]["status"] for name in ("gateway", "verify")] == ["ok", "serving"]
    assert [(draft["address"], draft["status"]) for draft in facts["drafts"]] == [
        (f"{hosts['draft'].address}:50053", "serving")
    ]
