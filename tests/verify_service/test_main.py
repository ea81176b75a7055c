"""The service as a process: loading, ready, drained, and refusals to start."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from slipstream.rpc.channel import open_sync_channel
from slipstream.v1 import sampling_pb2, verify_pb2, verify_pb2_grpc
from support.cluster import free_ports
from support.forked import Forks

COMMAND = (sys.executable, "-m", "verify_service")


@contextmanager
def started(*flags: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process and its port, once it says that it is ready."""
    process = subprocess.Popen([*COMMAND, "--port", "0", *flags], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"ready grpc=(\d+)", line):
                yield process, int(found[1])
                break
        else:
            raise AssertionError("the process ended before it was ready")
    finally:
        process.kill()
        process.communicate()


def test_it_serves_and_ends_on_sigterm(tiny_model: Path) -> None:
    (metrics_port,) = free_ports(1)
    with started("--model", str(tiny_model), "--metrics-port", str(metrics_port)) as (process, port):
        with open_sync_channel(f"127.0.0.1:{port}") as channel:
            health = health_pb2_grpc.HealthStub(channel)
            for name in ("", "slipstream.v1.VerifyService", "slipstream.v1.DraftLinkService"):
                status = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=60).status
                assert status == health_pb2.HealthCheckResponse.SERVING
            reflected = set(ProtoReflectionDescriptorDatabase(channel).get_services())
            assert reflected >= {
                "slipstream.v1.VerifyService",
                "slipstream.v1.DraftLinkService",
                "grpc.health.v1.Health",
            }
            info = verify_pb2_grpc.VerifyServiceStub(channel).GetInfo(verify_pb2.GetInfoRequest(), timeout=60)
            assert (info.model_name, info.mode, info.process_id) == (tiny_model.name, "exact", process.pid)
            state = verify_pb2_grpc.VerifyServiceStub(channel).GetState(verify_pb2.GetStateRequest(), timeout=60)
            assert (state.steps, state.pages_free) == (0, state.pages_total)
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=60) as reply:
            assert b"slipstream_num_requests_running 0.0" in reply.read()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


def slow_grammar(number: int) -> sampling_pb2.Grammar:
    rules = [f"r{rule}: r{rule + 1}? r{rule + 1}?" for rule in range(1500)]
    return sampling_pb2.Grammar(lark="\n".join(["start: r0", *rules, f'r1500: "{number}"']))


def test_it_ends_orderly_though_grammars_are_still_compiled(tiny_model: Path) -> None:
    submits = []
    for number in range(40, -1, -1):
        grammar = slow_grammar(number) if number else None
        sampling = sampling_pb2.SamplingParams(seed=1, max_tokens=1, grammar=grammar)
        submits.append(verify_pb2.Submit(request_id=number, prompt_token_ids=[9, 8], sampling=sampling))
    with started("--model", str(tiny_model)) as (process, port):
        with open_sync_channel(f"127.0.0.1:{port}") as channel:
            requests = iter([verify_pb2.SessionRequest(submit=submit) for submit in submits])
            session = verify_pb2_grpc.VerifyServiceStub(channel).Session(requests, timeout=60)
            next(session)  # of the last one, which has no grammar
            session.cancel()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


def assert_refused(forks: Forks, reason: str, *flags: str) -> None:
    ended = forks.run("verify_service", "--port", "0", *flags)
    assert ended.status == 1
    assert re.search(reason, ended.output), ended.output
    assert "Traceback" not in ended.output


def test_a_folder_without_a_model_is_refused(forks: Forks, tmp_path: Path) -> None:
    assert_refused(forks, r"config\.json", "--model", str(tmp_path))


def test_memory_that_does_not_fit_is_refused_with_figures(forks: Forks, tiny_model: Path) -> None:
    reason = r"out of memory: 10000000 KV pages of .* MiB available"
    assert_refused(forks, reason, "--model", str(tiny_model), "--num-pages", "10000000")


def test_a_taken_port_is_refused(forks: Forks, tiny_model: Path) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        reason = rf"cannot listen on 127\.0\.0\.1:{port}"
        assert_refused(forks, reason, "--model", str(tiny_model), "--port", str(port))
    finally:
        server.stop(0).wait()


def test_a_taken_port_for_metrics_is_refused(forks: Forks, tiny_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        reason = rf"cannot listen on 127\.0\.0\.1:{port}, --metrics-port: Address already in use"
        assert_refused(forks, reason, "--model", str(tiny_model), "--metrics-port", str(port))


def test_help_lists_every_setting() -> None:
    done = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, timeout=60, check=True)
    for flag in ("--model", "--page-size", "--no-prefix-cache", "--default-proposer", "--attach-token"):
        assert flag in done.stdout


def test_settings_are_read_without_the_libraries_of_the_device() -> None:
    loaded = "import sys, verify_service.server.command; print({'torch', 'numba', 'triton'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"
