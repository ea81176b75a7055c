"""The life of the process: start, keys, drain."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import openai
import pytest
import uvloop

from gateway.server import acceptors
from slipstream import Client, Event
from slipstream.rpc.errors import UnauthenticatedError, UnavailableError
from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess


def test_drain_lets_streams_finish_and_refuses_new_requests(tokenizer_folder: Path) -> None:
    patient = ("--drain-seconds", "200")  # on a machine that is busy otherwise
    with FakeVerify() as verify, GatewayProcess(tokenizer_folder, verify.address, *patient) as gateway:
        verify.reset(step_seconds=0.5)
        outputs: dict[int, list[Event]] = {}
        with Client(gateway.grpc_address) as client:

            def read(index: int) -> None:
                outputs[index] = list(client.stream("abc", ignore_eos=True, max_tokens=60))

            readers = [threading.Thread(target=read, args=(index,)) for index in range(16)]
            for reader in readers:
                reader.start()
            verify.wait_for(lambda seen: len(seen.submits) == 16)
            gateway.process.send_signal(signal.SIGTERM)
            gateway.wait_ready(ready=False)
            answer = httpx.post(f"{gateway.http_url}/v1/completions", json={"model": "tiny", "prompt": "x"}, timeout=60)
            assert (answer.status_code, "shutting down" in answer.text) == (503, True)
            with pytest.raises(UnavailableError, match="shutting down"):
                client.generate("x")
            verify.script.step_seconds = 0.0
            for reader in readers:
                reader.join()
        assert [len(outputs[index]) for index in range(16)] == [60] * 16
        assert gateway.process.wait(60) == 0


def test_a_drain_that_takes_too_long_ends_streams_as_unavailable(tokenizer_folder: Path) -> None:
    with (
        FakeVerify() as verify,
        GatewayProcess(tokenizer_folder, verify.address, "--drain-seconds", "0.2") as gateway,
        Client(gateway.grpc_address) as client,
    ):
        verify.reset(stall_after=2)
        stream = client.stream("abc", ignore_eos=True)
        next(stream)
        gateway.process.send_signal(signal.SIGTERM)
        with pytest.raises(UnavailableError, match="shutting down"):
            list(stream)
        assert gateway.process.wait(60) == 0
    assert "Traceback" not in gateway.logs


def test_api_keys_are_needed_and_stand_for_tenants(tokenizer_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('[keys]\nsk-good = "red"\nsk-other = "blue"\n[tenants.red]\nweight = 2.5\n', "utf-8")
    with (
        FakeVerify() as verify,
        GatewayProcess(tokenizer_folder, verify.address, "--api-keys-file", str(file)) as gateway,
    ):
        for key in ("sk-bad", ""):
            with Client(gateway.grpc_address, api_key=key) as client, pytest.raises(UnauthenticatedError):
                client.list_models()
        with Client(gateway.grpc_address, api_key="sk-good") as client:
            client.generate("x", tenant="blue", max_tokens=1)
        good = openai.OpenAI(base_url=f"{gateway.http_url}/v1", api_key="sk-good")
        good.completions.create(model="tiny", prompt="x", max_tokens=1, user="blue")
        good.with_options(api_key="sk-other").completions.create(model="tiny", prompt="x", max_tokens=1)
        asked = [(submit.tenant, submit.weight or 1.0) for submit in verify.seen.submits]
        assert asked == [("red", 2.5), ("red", 2.5), ("blue", 1.0)]
        with pytest.raises(openai.AuthenticationError):
            good.with_options(api_key="sk-bad", max_retries=0).models.list()
        document = httpx.get(f"{gateway.http_url}/openapi.json", timeout=60).json()
        assert document["paths"]["/v1/models"]["get"]["security"] == [{"key": []}]


def test_a_port_in_use_is_said_so(tokenizer_folder: Path) -> None:
    with FakeVerify() as verify:
        command = [sys.executable, "-m", "gateway", "--model", str(tokenizer_folder), "--verify", verify.address]
        result = subprocess.run(
            [*command, "--http-port", "0", "--grpc-port", str(verify.port)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert result.returncode == 1
    assert f"cannot listen on 127.0.0.1:{verify.port}" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "/nowhere"], "--model: no such folder: /nowhere"),
        (["--model", ".", "--chat-template", "/nowhere"], "--chat-template: no such file"),
        (["--model", ".", "--verify", "nowhere"], "is not host:port"),
        (["--http-port", "70000"], "--http-port"),
        (["--allowed-origins", "chat.example.org"], "--allowed-origins: 'chat.example.org' is no origin"),
        (["--keep-alive-seconds", "0"], "--keep-alive-seconds: should be greater than or equal to 1"),
    ],
)
def test_bad_settings_are_named(arguments: list[str], words: str) -> None:
    command = [sys.executable, "-m", "gateway", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 2
    assert words in result.stderr


def test_the_gateway_imports_no_torch() -> None:
    code = "import sys, gateway.server; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0


def test_several_connections_are_accepted_in_a_turn_of_the_loop() -> None:
    async def accepted_in(turns: int) -> int:
        connections: list[asyncio.Protocol] = []

        class Accepted(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                connections.append(self)

        listener = socket.create_server(("127.0.0.1", 0), backlog=500)
        loop = asyncio.get_running_loop()
        servers = [await loop.create_server(Accepted, sock=each) for each in acceptors(listener)]
        clients = [socket.create_connection(listener.getsockname()) for _ in range(100)]
        for _ in range(turns):
            await asyncio.sleep(0)
        found = len(connections)
        for each in (*clients, *servers):
            each.close()
        await asyncio.sleep(0.1)
        return found

    assert uvloop.run(accepted_in(12)) >= 60
