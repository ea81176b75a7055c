"""What docker-compose.yml says of containers, and its commands, run as they stand on hosts of their own."""

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

from launcher.services.process import ServiceCommand, ServiceProcess, Spawner
from support.cluster import StartupError
from support.compose import DEPLOY, compose, entrypoint, variables
from support.hosts import Host, can_make_namespaces, loopbacks, namespaces

START_SECONDS = 240.0
SERVICES = ("verify", "draft", "gateway")
MODULES = {"verify": "verify_service", "draft": "draft_service", "gateway": "gateway"}
PROFILES = {
    "cpu": {"gateway", "verify", "draft"},
    "gpu": {"gateway", "verify-gpu", "draft-gpu", "mps", "pause"},
    "inproc": {"gateway", "verify-inproc"},
    "gpu-inproc": {"gateway", "verify-gpu-inproc"},
    "watch": {"prometheus", "grafana"},
}
NETWORKS = {
    "gateway": {"services", "watch", "public"},
    "verify": {"services", "watch"},
    "draft": {"services"},
    "prometheus": {"watch"},
    "grafana": {"watch", "public"},
}
"""Those of a service, or of the containers that run it; others have none."""
PUBLISHED = {"gateway": ["127.0.0.1:8000:8000", "127.0.0.1:50051:50051"], "grafana": ["127.0.0.1:3000:3000"]}
SHARED = {"mps"}
"""Volumes that several services write: the pipe folder of MPS, which is what it is for."""
INFO_VARIABLES = {"SLIPSTREAM_VERIFY_ADDRESS", "SLIPSTREAM_GATEWAY_ADDRESS"}

ASK = """
import json, sys, urllib.request
body = {"model": sys.argv[2], "prompt": "The harbour was quiet", "max_tokens": 8, "temperature": 0}
request = urllib.request.Request(sys.argv[1], json.dumps(body).encode(), {"Content-Type": "application/json"})
print(urllib.request.urlopen(request, timeout=120).read().decode())
"""


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    return compose()["services"]


def service_name(service: Mapping[str, Any]) -> str:
    """verify, draft or gateway; empty for what supports them."""
    if not {"build", "entrypoint"} & set(service):
        return ""
    program, *rest = entrypoint(service)
    return rest[1] if program == "slipstream" and rest[0] == "run" else ""


def running_services(services: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {name: service for name, service in services.items() if service_name(service)}


def test_info_is_told_in_every_container_where_the_services_are(services):
    for service in running_services(services).values():
        assert set(service["environment"]) >= INFO_VARIABLES


def test_every_flag_and_variable_is_one_the_service_knows(services):
    help_of: dict[str, str] = {}
    for service in running_services(services).values():
        name = service_name(service)
        if name not in help_of:
            command = [sys.executable, "-m", MODULES[name], "--help"]
            help_of[name] = subprocess.run(command, capture_output=True, text=True, check=True, timeout=180).stdout
        prefix = f"SLIPSTREAM_{name.upper()}_"
        variables = set(service["environment"]) - INFO_VARIABLES
        settings = [key.removeprefix(prefix) for key in variables if key.startswith(prefix)]
        flags = [part.split("=")[0] for part in service["command"]]
        for flag in [*flags, *(f"--{setting.lower().replace('_', '-')}" for setting in settings)]:
            assert flag in help_of[name], f"{name} has no {flag}"


def test_a_profile_has_what_it_needs(services):
    for profile, names in PROFILES.items():
        assert {name for name, service in services.items() if profile in service["profiles"]} == names


def test_what_is_compiled_in_one_service_is_never_loaded_by_another(services):
    writers: dict[str, list[str]] = {}
    for name, service in services.items():
        for volume in service.get("volumes", []):
            if isinstance(volume, str) and not volume.endswith(":ro"):
                writers.setdefault(volume.split(":")[0], []).append(name)
    assert all(len(names) == 1 for volume, names in writers.items() if volume not in SHARED)
    assert set(writers) == set(compose()["volumes"])
    caches = {name for names in writers.values() for name in names}
    assert {name for name, service in services.items() if service_name(service) in ("verify", "draft")} <= caches


def test_models_are_read_only_and_no_empty_folder_stands_in_for_them(services):
    for service in running_services(services).values():
        binds = [volume for volume in service["volumes"] if not isinstance(volume, str)]
        assert binds
        for bind in binds:
            assert bind["read_only"] is True
            assert bind["bind"] == {"create_host_path": False}
        assert not any(volume.startswith((".", "/", "~")) for volume in service["volumes"] if isinstance(volume, str))


def test_every_container_runs_without_privileges(services):
    for service in services.values():
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"] is True
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert int(service["user"].split(":")[0]) > 0
        assert not {"privileged", "cap_add", "devices"} & set(service)


def test_shared_namespaces_belong_to_a_container_that_only_sleeps(services):
    overridden = compose("docker-compose.shm.yml")["services"]
    shared = [*services.values(), *overridden.values()]
    owners = {service[space] for service in shared for space in ("ipc", "pid") if ":" in service.get(space, "")}
    assert owners == {"service:pause"}
    assert services["pause"]["entrypoint"] == ["sleep", "infinity"]
    assert services["pause"]["init"] is True
    assert services["pause"]["ipc"] == "shareable"
    for name in ("verify-gpu", "draft-gpu", "mps"):
        assert services[name]["pid"] == services[name]["ipc"] == "service:pause"
    assert {name for name, service in overridden.items() if service.get("pid")} == {"verify", "draft"}
    assert overridden["pause"]["profiles"] == ["cpu"]


def test_no_container_but_the_gateway_and_grafana_reaches_or_is_reached_from_outside(services):
    assert compose()["networks"] == {"services": {"internal": True}, "watch": {"internal": True}, "public": None}
    for name, service in services.items():
        joined = set(service.get("networks", ())) or {service["network_mode"]}
        assert joined == NETWORKS.get(service_name(service) or name, {"none"})
        assert service.get("ports", []) == PUBLISHED.get(name, [])
    moved = compose(HTTP_PORT="9000", GRPC_PORT="9001", BIND_ADDRESS="0.0.0.0")["services"]["gateway"]["ports"]
    assert moved == ["0.0.0.0:9000:8000", "0.0.0.0:9001:50051"]


def test_the_gateway_stops_first_and_the_draft_service_last(services):
    def before(name: str) -> set[str]:
        return set(services[name].get("depends_on", ()))

    verifying = {name for name, service in services.items() if service_name(service) == "verify"}
    assert before("gateway") == verifying
    assert not any(services["gateway"]["depends_on"][name]["required"] for name in verifying)  # those of other profiles
    assert "draft" in before("verify")
    assert "draft-gpu" in before("verify-gpu")
    assert not {"verify", "gateway"} & before("draft")
    for name in ("gateway", *verifying):
        assert int(services[name]["stop_grace_period"].removesuffix("s")) > 30  # --drain-seconds


def test_engines_of_all_ages_take_the_health_checks(services):
    checks = [service["healthcheck"] for service in services.values() if "healthcheck" in service]
    assert len(checks) == len(running_services(services)) + 1
    assert not any("start_interval" in check for check in checks)


def test_the_model_is_named_by_its_folder_unless_the_operator_names_it(services):
    for service in running_services(services).values():
        assert not any("model-name" in part for part in service["command"])
    verify = compose(MODEL="Llama-3.1-8B", MODELS_DIR="/data")["services"]["verify"]
    assert verify["environment"]["SLIPSTREAM_VERIFY_MODEL"] == "/models/Llama-3.1-8B"
    assert not verify["environment"]["SLIPSTREAM_VERIFY_MODEL_NAME"]
    assert verify["volumes"][0]["source"] == compose(MODELS_DIR="/data")["services"]["draft"]["volumes"][0]["source"]
    named = compose(MODEL_NAME="llama")["services"]["verify"]["environment"]
    assert named["SLIPSTREAM_VERIFY_MODEL_NAME"] == "llama"


def test_images_of_others_are_pinned_and_read_files_that_are_there(services):
    images = {name: service["image"] for name, service in services.items() if "build" not in service}
    assert set(images) == PROFILES["watch"]
    assert all(re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", image) for image in images.values())
    for name in images:
        binds = [volume for volume in services[name]["volumes"] if not isinstance(volume, str)]
        assert all((DEPLOY / bind["source"]).is_dir() and bind["read_only"] for bind in binds)
        assert all(bind["bind"] == {"create_host_path": False} for bind in binds)


def test_every_variable_is_explained():
    explained = (DEPLOY / "env.example").read_text()
    names = variables("docker-compose.yml") | variables("docker-compose.shm.yml")
    assert {name for name in names if f"#{name}=" not in explained} == {"SLIPSTREAM_ATTACH_TOKEN"}


def test_one_command_makes_the_settings_and_a_secret_of_their_own(tmp_path):
    (tmp_path / "deploy").mkdir()
    for name in ("Makefile", "deploy/env.example"):
        (tmp_path / name).write_text((DEPLOY.parent / name).read_text())
    secrets = set()
    for _ in range(2):
        command = ["make", f"PYTHON={sys.executable}", "deploy/.env"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
        written = tmp_path / "deploy" / ".env"
        assert written.stat().st_mode & 0o077 == 0
        secrets.add(re.match(r"SLIPSTREAM_ATTACH_TOKEN=([0-9a-f]{32})\n", written.read_text())[1])
        written.unlink()
    assert len(secrets) == 2
    ignored = subprocess.run(
        ["git", "check-ignore", "deploy/.env"], cwd=DEPLOY.parent, check=False, capture_output=True
    )
    assert ignored.returncode == 0


def test_the_cpu_profile_answers_across_hosts(services, tiny_model, tiny_draft_model):
    place = namespaces if can_make_namespaces() else loopbacks
    with place([*SERVICES, "client"]) as hosts, running(services, hosts, tiny_model, tiny_draft_model) as processes:
        http = f"http://{hosts['gateway'].address}:8000"
        wait_for(lambda: attached(hosts, processes), processes, "not all is attached")
        answer = run_on(hosts["client"], [sys.executable, "-c", ASK, f"{http}/v1/completions", tiny_model.name])
        assert json.loads(answer)["usage"]["completion_tokens"] == 8


@contextmanager
def running(
    services: Mapping[str, Mapping[str, Any]], hosts: Mapping[str, Host], model: Path, draft: Path
) -> Iterator[dict[str, ServiceProcess]]:
    spawner = Spawner()
    processes = {}
    try:
        for name in SERVICES:
            service, host = services[name], hosts[name]
            program, *rest = entrypoint(service)
            assert program == "slipstream"
            arguments = [localised(part, hosts, host, model, draft) for part in (*rest, *service["command"])]
            command = (*host.prefix, sys.executable, "-m", "launcher", *arguments)
            environment = {
                key: localised(str(value), hosts, host, model, draft) for key, value in service["environment"].items()
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
    return part.replace("/models/slipstream-demo", str(model)).replace("/drafts/slipstream-demo-draft", str(draft))


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
