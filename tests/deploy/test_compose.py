"""The compose file's commands, run as they stand on hosts of their own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.process import ServiceCommand, ServiceProcess, Spawner
from support.cluster import StartupError
from support.hosts import Host, can_make_namespaces, loopbacks, namespaces

ROOT = Path(__file__).parent.parent.parent
COMPOSE = ROOT / "deploy" / "docker-compose.yml"
VARIABLE = re.compile(r"\$\{(\w+)(?::[-?]([^}]*))?\}")
START_SECONDS = 240.0
SERVICES = ("verify", "draft", "gateway")

ASK = """
import json, sys, urllib.request
body = {"model": "slipstream-demo", "prompt": "The harbour was quiet", "max_tokens": 8, "temperature": 0}
request = urllib.request.Request(sys.argv[1], json.dumps(body).encode(), {"Content-Type": "application/json"})
print(urllib.request.urlopen(request, timeout=120).read().decode())
"""


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    return yaml.safe_load(COMPOSE.read_text())["services"]


def entrypoint(service: Mapping[str, Any]) -> list[str]:
    text = (ROOT / service["build"]["dockerfile"]).read_text()
    return json.loads(re.search(r"^ENTRYPOINT (.*)$", text, re.MULTILINE).group(1))


def built(services: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {name: service for name, service in services.items() if "build" in service}


def test_every_image_copies_what_it_runs(services):
    for service in built(services).values():
        dockerfile = (ROOT / service["build"]["dockerfile"]).read_text()
        package = entrypoint(service)[2]
        copied = {
            line.split()[1] for line in dockerfile.splitlines() if line.startswith("COPY ") and "--from" not in line
        }
        assert {package, "protos", "launcher"} <= copied
        assert all((ROOT / name).exists() for name in copied)
        others = {"draft_service", "gateway", "verify_service"} - {package}
        assert not others & copied


def test_every_flag_is_one_the_service_knows(services):
    help_of: dict[str, str] = {}
    for service in built(services).values():
        module = entrypoint(service)[2]
        if module not in help_of:
            command = [sys.executable, "-m", module, "--help"]
            help_of[module] = subprocess.run(command, capture_output=True, text=True, check=True, timeout=180).stdout
        for part in service["command"]:
            assert part.split("=")[0] in help_of[module], f"{module} has no {part}"


def test_both_profiles_have_all_three_services(services):
    for profile in ("cpu", "gpu"):
        modules = {entrypoint(each)[2] for each in built(services).values() if profile in each["profiles"]}
        assert modules == {"gateway", "verify_service", "draft_service"}


def test_only_the_gateway_is_published_and_only_on_loopback(services):
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert list(published) == ["gateway"]
    assert all(port.startswith("127.0.0.1:") for port in published["gateway"])


def test_the_cpu_profile_answers_across_hosts(services, tiny_model, tiny_draft_model):
    place = namespaces if can_make_namespaces() else loopbacks
    with place([*SERVICES, "client"]) as hosts, running(services, hosts, tiny_model, tiny_draft_model) as processes:
        http = f"http://{hosts['gateway'].address}:8000"
        wait_for(lambda: attached(hosts, processes), processes, "not all is attached")
        answer = run_on(hosts["client"], [sys.executable, "-c", ASK, f"{http}/v1/completions"])
        assert json.loads(answer)["usage"]["completion_tokens"] == 8


@contextmanager
def running(
    services: Mapping[str, Mapping[str, Any]], hosts: Mapping[str, Host], model: Path, draft: Path
) -> Iterator[dict[str, ServiceProcess]]:
    spawner = Spawner()
    values = {"SLIPSTREAM_ATTACH_TOKEN": "a-secret-of-this-test"}
    processes = {}
    try:
        for name in SERVICES:
            service, host = services[name], hosts[name]
            arguments = [localised(part, hosts, host, model, draft) for part in service["command"]]
            command = (*host.prefix, sys.executable, *entrypoint(service)[1:], *arguments)
            environment = {
                key: VARIABLE.sub(lambda match: values[match[1]], str(value))
                for key, value in service.get("environment", {}).items()
                if key != "NUMBA_CACHE_DIR"
            }
            processes[name] = ServiceProcess(ServiceCommand(name, command, "", environment), spawner)
        for name in SERVICES:
            check = probe_command(services[name], hosts[name])
            wait_for(lambda check=check, name=name: succeeds(hosts[name], check), processes, f"{name} is not healthy")
        yield processes
    finally:
        for process in processes.values():
            process.stop(grace=10)


def localised(part: str, hosts: Mapping[str, Host], own: Host, model: Path, draft: Path) -> str:
    """A container's argument on this machine: its mounts, its peers' names and the address it listens on."""
    part = part.replace("=verify:", f"={hosts['verify'].address}:").replace("0.0.0.0", own.address)
    return re.sub(r"(?<=[=:])/(model|draft)\b", lambda match: str({"model": model, "draft": draft}[match[1]]), part)


def probe_command(service: Mapping[str, Any], host: Host) -> list[str]:
    """The container's own health check, for the address the service has here."""
    _, program, *arguments = service["healthcheck"]["test"]
    assert program == "slipstream"
    return [sys.executable, "-m", "launcher", *(part.replace("127.0.0.1", host.address) for part in arguments)]


def attached(hosts: Mapping[str, Host], processes: Mapping[str, ServiceProcess]) -> bool:
    command = [sys.executable, "-m", "launcher", "info", "--json", "--verify", f"{hosts['verify'].address}:50052"]
    command += ["--gateway", f"{hosts['gateway'].address}:8000"]
    facts = json.loads(run_on(hosts["client"], command))
    proposers = facts["verify"]["proposers"]
    return facts["gateway"]["status"] == "ok" and bool(proposers) and all(each["attached"] for each in proposers)


def wait_for(condition, processes: Mapping[str, ServiceProcess], what: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        ended = [each for each in processes.values() if not each.running]
        if ended or time.monotonic() > deadline:
            logs = "\n".join(f"--- {name}\n{each.log(40)}" for name, each in processes.items())
            raise StartupError(f"{what}\n{logs}")
        time.sleep(0.1)


def succeeds(host: Host, command: list[str]) -> bool:
    return subprocess.run([*host.prefix, *command], capture_output=True, check=False, timeout=180).returncode == 0


def run_on(host: Host, command: list[str]) -> str:
    reply = subprocess.run([*host.prefix, *command], capture_output=True, text=True, check=False, timeout=180)
    assert reply.stdout, reply.stderr
    return reply.stdout
