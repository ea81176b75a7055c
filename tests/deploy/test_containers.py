"""The images are built, run and hurt, where there is a Docker engine and somebody has asked for it.

SLIPSTREAM_TEST_DOCKER=1 asks for it; base image and package index are taken from the variables of deploy/env.example.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest

from support.containers import HANG_SECONDS, Containers, why_not

pytestmark = [
    pytest.mark.skipif(bool(REASON := why_not()), reason=REASON),
    pytest.mark.timeout(4200),
]

PROMPTS = ("The harbour was quiet", "def add(a, b):", "Once upon a time", "The list of countries is")
ASKED = {"model": "slipstream-demo", "max_tokens": 300, "temperature": 0.8, "seed": 11, "ignore_eos": True}
HARDENED = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--network", "none", "--volume", "/cache")
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5)
    print("connected")
except OSError as error:
    print(type(error).__name__, error.strerror)
"""
ASK_PROMETHEUS = """
import json, sys, urllib.request
reply = json.load(urllib.request.urlopen(f"http://prometheus:9090/api/v1/{sys.argv[1]}", timeout=30))
print(json.dumps(reply["data"]))
"""
PROMETHEUS_OF_DEBIAN = """
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
RUN apt-get update && apt-get install -y --no-install-recommends prometheus && install -d -o 65534 -g 65534 /prometheus
ENTRYPOINT ["prometheus"]
"""
"""For machines that cannot pull the image of docker-compose.yml: /prometheus belongs to the same user."""

BUILD_WITH_TRITON = """
import ctypes, hashlib, pathlib, tempfile
import cuda.bindings, torch, triton
from slipstream_kernels.jit.cache_folders import settle_triton_cache
from triton.runtime.build import _build
from triton.runtime.cache import get_cache_manager
settle_triton_cache()
source = '#include <Python.h>\\nint answer(void) { return PY_MAJOR_VERSION * 14; }'
with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder, "answer.c")
    file.write_text(source)
    built = pathlib.Path(_build("answer", str(file), folder, [], [], [], []))
    cache = get_cache_manager(hashlib.sha256(source.encode()).hexdigest())
    kept = cache.put(built.read_bytes(), "answer.so", binary=True)
print(kept, ctypes.CDLL(kept).answer())
"""

IMPORT_FLASHINFER = """
from slipstream_kernels.models.gpu.forward.flashinfer_attention import load_flashinfer
library = load_flashinfer()
print(library.BatchDecodeWithPagedKVCacheWrapper.__name__, library.decode.fast_decode_plan.__name__)
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[Containers]:
    """All of the cpu profile, attached."""
    containers = Containers("cpu")
    try:
        containers.build()
        containers.up()
        yield containers
    finally:
        containers.down()


@pytest.fixture(scope="module")
def calm(stack) -> list[str]:
    """What a server says that nobody disturbs."""
    return said(stack, PROMPTS)


def said(stack: Containers, prompts: Sequence[str]) -> list[str]:
    return [stack.stream(lambda: None, **ASKED, prompt=prompt) for prompt in prompts]


def said_under(stack: Containers, disturb) -> list[str]:
    """The same, of streams that run together and have begun when they are disturbed."""
    begun = threading.Semaphore(0)
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        streams = [
            pool.submit(stack.stream, begun.release, **ASKED, prompt=prompt, speculation={"enabled": True})
            for prompt in PROMPTS
        ]
        for _ in range(4 * len(PROMPTS)):
            assert begun.acquire(timeout=120)
        assert not all(stream.done() for stream in streams)
        disturb()
        return [stream.result() for stream in streams]


def killed_and_started_again(stack: Containers, container: str, module: str, calm: list[str]) -> None:
    """The engine starts a container whose service is killed under streams, which say the same."""
    before = stack.restarts(container)
    assert said_under(stack, lambda: stack.signal(container, module, signal.SIGKILL)) == calm
    stack.wait_for(lambda: stack.restarts(container) > before, f"{container} was not restarted")
    stack.wait_for(stack.all_attached, "not attached again")


def test_a_completion_is_answered_with_drafts(stack):
    answer = stack.ask(**ASKED, prompt=PROMPTS[0], speculation={"enabled": True}).json()
    assert answer["usage"]["completion_tokens"] == ASKED["max_tokens"]
    assert answer["usage"]["accepted_tokens"] > 0
    assert {each["transport"] for each in stack.attachments()} == {"grpc"}


@pytest.mark.parametrize("beside", ["gateway", "verify", "draft"])
def test_info_beside_any_service_finds_all_of_them(stack, beside):
    facts = json.loads(stack.run_in(beside, "slipstream", "info", "--json"))
    assert [(facts[name]["address"], facts[name]["status"]) for name in ("gateway", "verify")] == [
        ("gateway:8000", "ok"),
        ("verify:50052", "serving"),
    ]
    assert [(draft["status"], draft["proposers"]) for draft in facts["drafts"]] == [
        ("serving", ["draft-model", "ngram"])
    ]


def test_a_service_that_dies_is_started_again_and_no_stream_notices(stack, calm):
    for service, module in (("draft", "draft_service"), ("verify", "verify_service")):
        killed_and_started_again(stack, stack.container(service), module, calm)


def test_a_service_that_hangs_is_started_again(stack, calm):
    verify = stack.container("verify")
    before = stack.restarts(verify)
    assert said_under(stack, lambda: stack.signal(verify, "verify_service", signal.SIGSTOP)) == calm
    assert stack.restarts(verify) > before
    assert "verify does not answer at 127.0.0.1:50052 and is killed" in stack.compose("logs", "verify")
    stack.wait_for(stack.all_attached, "not attached again", 10 * HANG_SECONDS)


def test_a_second_draft_service_takes_over(stack, calm):
    second = f"{stack.name}-second"
    arguments = ("--verify=verify:50052", "--proposers=draft-model:/drafts/slipstream-demo-draft,ngram", "--share=0")

    def swapped() -> bool:  # repeated, as somebody would whose machine was too busy to answer in time
        said = stack.run_in("verify", "slipstream", "swap-draft", f"{second}:50053", check=False)
        return "no request has yet to move" in said

    def take_over() -> None:
        stack.wait_for(swapped, "the second one has not taken over")
        stack.compose("stop", "draft")

    try:
        stack.compose("run", "-d", "--no-deps", "--name", second, "draft", "--host=0.0.0.0", *arguments)
        stack.docker("update", "--restart", "unless-stopped", second)
        stack.wait_for(lambda: stack.verify_facts()["state"]["attachments"] == 2, "the second one is not attached")
        assert said_under(stack, take_over) == calm
        killed_and_started_again(stack, second, "draft_service", calm)
        assert stack.verify_facts()["state"]["attachments"] == 1
    finally:
        stack.docker("rm", "-f", second)
        stack.up()


def test_no_service_but_the_gateway_reaches_anything_else(stack):
    for service in ("verify", "draft"):
        assert stack.python(service, CONNECT, "203.0.113.1", "80").strip() == "OSError Network is unreachable"


def test_what_a_drafter_writes_is_not_in_the_verify_service(stack):
    find = "import pathlib; print(*(path for path in pathlib.Path('/cache').rglob('*.nb?')))"
    assert stack.python("verify", find).strip()
    stack.python("draft", "open('/cache/planted', 'w')")
    assert stack.python("verify", "import os; print('planted' in os.listdir('/cache'))").strip() == "False"


def test_streams_finish_before_anything_stops_and_the_drafter_stops_last(stack, calm):
    assert said_under(stack, lambda: stack.compose("stop")) == calm
    states = {service: stack.inspect(stack.container(service))["State"] for service in ("gateway", "verify", "draft")}
    assert {service: state["ExitCode"] for service, state in states.items()} == dict.fromkeys(states, 0)
    ends = [datetime.fromisoformat(f"{state['FinishedAt'][:26]}+00:00") for state in states.values()]
    assert ends == sorted(ends)
    stack.up()


def test_containers_that_share_processes_share_memory(stack, calm):
    stack.choose("cpu", "docker-compose.shm.yml")
    try:
        stack.up()
        assert {each["transport"] for each in stack.attachments()} == {"shm"}
        for service, module in (("draft", "draft_service"), ("verify", "verify_service")):
            disturbed = said_under(
                stack, lambda s=service, m=module: stack.signal(stack.container(s), m, signal.SIGKILL)
            )
            assert disturbed == calm
            stack.wait_for(stack.all_attached, "not attached again")
        assert {each["transport"] for each in stack.attachments()} == {"shm"}
    finally:
        stack.choose("cpu")


def test_the_verify_service_drafts_in_its_own_process(stack, calm):
    stack.down()
    stack.choose("inproc")
    try:
        stack.build()
        stack.up()
        assert {each["transport"] for each in stack.attachments()} == {"inproc"}
        assert said_under(stack, lambda: None) == calm
    finally:
        stack.down()
        stack.choose("cpu")


@pytest.fixture
def prometheus(stack, tmp_path) -> Iterator[str]:
    """The container of a Prometheus beside the stack."""
    (tmp_path / "Dockerfile").write_text(PROMETHEUS_OF_DEBIAN)
    image = "slipstream-test-prometheus"
    base = json.loads(stack.compose("config", "--format", "json"))["services"]["gateway"]["build"]["args"]["BASE_IMAGE"]
    stack.docker("build", "-t", image, "--build-arg", f"BASE_IMAGE={base}", str(tmp_path))
    stack.set(PROMETHEUS_IMAGE=image, METRICS_NAMES="vllm")
    try:
        stack.compose("--profile", "watch", "up", "-d", "prometheus")
        stack.up()
        yield stack.container("prometheus")
    finally:
        stack.compose("--profile", "watch", "rm", "-fsv", "prometheus")
        stack.set(METRICS_NAMES="")


def prometheus_says(stack: Containers, path: str):
    return json.loads(stack.python("gateway", ASK_PROMETHEUS, path))


def health_of_rules(stack: Containers) -> set[str]:
    groups = prometheus_says(stack, "rules")["groups"]
    return {rule["health"] for group in groups for rule in group["rules"]}


def test_prometheus_scrapes_the_services_and_no_drafter_reaches_it(stack, prometheus):
    def scraped() -> bool:
        targets = prometheus_says(stack, "targets")["activeTargets"]
        return {target["labels"]["job"]: target["health"] for target in targets} == {"gateway": "up", "verify": "up"}

    def accepted() -> bool:
        return bool(prometheus_says(stack, "query?query=vllm:spec_decode_num_accepted_tokens_total>0")["result"])

    stack.wait_for(scraped, "not all services are scraped")
    stack.ask(**ASKED, prompt=PROMPTS[0], speculation={"enabled": True}).raise_for_status()
    stack.wait_for(accepted, "no metrics under names of vLLM")
    stack.wait_for(lambda: "unknown" not in health_of_rules(stack), "not all rules are evaluated")
    assert health_of_rules(stack) == {"ok"}
    networks = stack.inspect(prometheus)["NetworkSettings"]["Networks"]
    (address,) = (network["IPAddress"] for network in networks.values())
    assert stack.python("gateway", CONNECT, address, "9090").strip() == "connected"
    assert stack.python("draft", CONNECT, address, "9090").strip() == "OSError Network is unreachable"


def test_a_folder_that_is_not_there_is_an_error_and_is_not_made(stack, tmp_path):
    missing = tmp_path / "no-models"
    stack.set(MODELS_DIR=str(missing))
    with pytest.raises(AssertionError, match="bind source path does not exist"):
        stack.compose("up", "-d", "gateway")
    assert not missing.exists()


def test_gpu_images_hold_what_triton_and_flashinfer_need():
    containers = Containers("gpu")
    containers.build("verify-gpu", "draft-gpu")
    for image, module in (("verify-gpu", "verify_service"), ("draft-gpu", "draft_service")):
        folder, answer = run_hardened(containers, image, BUILD_WITH_TRITON).split()[-2:]
        assert folder.startswith("/cache/")
        assert answer == "42"
        usage = containers.docker("run", "--rm", *HARDENED, f"slipstream-test-{image}", "--help")
        assert f"usage: {module}" in usage
    assert "fast_decode_plan" in run_hardened(containers, "verify-gpu", IMPORT_FLASHINFER)


def run_hardened(containers: Containers, image: str, code: str) -> str:
    return containers.docker("run", "--rm", *HARDENED, "--entrypoint", "python", f"slipstream-test-{image}", "-c", code)
