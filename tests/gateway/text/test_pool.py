"""Text workers die, hang or lose their fork server; and nothing is left of them when the gateway has gone."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess

SLOW = "{%- for i in range(99999) -%}{%- for j in range(200) -%}{%- endfor -%}{%- endfor -%}{{ messages[0].content }}"
"""Half a second's work on a fast processor."""


@pytest.fixture
def process(tokenizer_folder: Path, verify: FakeVerify) -> Iterator[GatewayProcess]:
    with GatewayProcess(tokenizer_folder, verify.address, "--text-workers", "2") as gateway:
        yield gateway


def ask(gateway: GatewayProcess, prompt: str = "x") -> int:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 1}
    return httpx.post(f"{gateway.http_url}/v1/completions", json=body, timeout=120).status_code


def fork_server(gateway: GatewayProcess) -> psutil.Process:
    (server,) = psutil.Process(gateway.process.pid).children()
    return server


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_workers_that_are_killed_are_replaced_and_nobody_fails(process: GatewayProcess) -> None:
    statuses: list[int] = []
    done = threading.Event()

    def keep_asking() -> None:
        while not done.is_set():
            statuses.append(ask(process))

    asking = threading.Thread(target=keep_asking)
    asking.start()
    for _ in range(5):
        workers = fork_server(process).children()
        for worker in workers:
            worker.kill()
        wait_for(lambda workers=workers: len(set(fork_server(process).children()) - set(workers)) == 2)
    done.set()
    asking.join()
    assert set(statuses) == {200}
    metrics = httpx.get(f"{process.http_url}/metrics", timeout=60).text
    assert 'slipstream_gateway_text_worker_ends_total{reason="crash"} 10.0' in metrics


def test_a_fork_server_that_is_killed_is_started_again(process: GatewayProcess) -> None:
    first = fork_server(process)
    workers = first.children()
    first.kill()
    assert ask(process) == 200
    wait_for(lambda: fork_server(process) != first and not any(worker.is_running() for worker in workers))
    assert ask(process) == 200


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_when_the_gateway_has_gone(
    make_folder: Callable[..., Path], verify: FakeVerify, number: signal.Signals
) -> None:
    """Not even a worker that is busy, and does not look at its socket."""
    loop = SLOW.replace("range(200)", "range(99999)")
    with GatewayProcess(make_folder(loop), verify.address, "--drain-seconds", "0", "--text-seconds", "300") as gateway:
        server = fork_server(gateway)
        processes = [server, *server.children()]

        def chat() -> None:
            body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
            with pytest.raises(httpx.HTTPError):
                httpx.post(f"{gateway.http_url}/v1/chat/completions", json=body, timeout=120).raise_for_status()

        chatting = threading.Thread(target=chat)
        chatting.start()
        wait_for(lambda: any(worker.cpu_times().user > 0.2 for worker in server.children()))
        gateway.process.send_signal(number)
        gateway.process.wait(60)
        chatting.join()
        try:
            wait_for(lambda: not any(entry.is_running() for entry in processes))
        finally:
            for entry in filter(psutil.Process.is_running, processes):
                entry.kill()


def test_signals_of_a_terminal_leave_a_drain_its_workers(make_folder: Callable[..., Path], verify: FakeVerify) -> None:
    """Ctrl-C reaches every process of the group; a request that is being read is answered all the same."""
    with GatewayProcess(make_folder(SLOW), verify.address) as gateway:
        server = fork_server(gateway)
        statuses: list[int] = []

        def chat() -> None:
            body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
            statuses.append(httpx.post(f"{gateway.http_url}/v1/chat/completions", json=body, timeout=120).status_code)

        chatting = threading.Thread(target=chat)
        chatting.start()
        wait_for(lambda: any(worker.cpu_times().user > 0.1 for worker in server.children()))
        for entry in (server, *server.children()):
            os.kill(entry.pid, signal.SIGINT)
            os.kill(entry.pid, signal.SIGTERM)
        chatting.join()
        assert statuses == [200]


def test_a_caller_that_gives_up_leaves_the_worker_to_its_job(
    make_folder: Callable[..., Path], verify: FakeVerify
) -> None:
    """The answer that nobody waits for any more is not given to the next one."""
    with GatewayProcess(make_folder(SLOW), verify.address, "--text-workers", "1") as gateway:
        from slipstream import Client
        from slipstream.rpc.errors import DeadlineExceededError

        with Client(gateway.grpc_address) as client:
            for _ in range(3):
                with pytest.raises(DeadlineExceededError):
                    client.tokenize(messages=[{"role": "user", "content": "abc"}], timeout=0.05)
            assert client.tokenize("xy", timeout=60) == client.tokenize("xy", timeout=60)
            assert len(client.tokenize("xy", timeout=60)) == 2
        assert "worker_ends_total{" not in httpx.get(f"{gateway.http_url}/metrics", timeout=60).text


def test_a_fork_server_that_dies_with_commands_unread_is_started_again(process: GatewayProcess) -> None:
    server = fork_server(process)
    server.suspend()
    for worker in server.children():
        worker.kill()
    time.sleep(1.5)  # until the gateway has asked for others
    server.kill()
    wait_for(lambda: [each.pid for each in psutil.Process(process.process.pid).children()] not in ([], [server.pid]))
    wait_for(lambda: httpx.get(f"{process.http_url}/ready", timeout=60).status_code == 200)
    assert ask(process) == 200
