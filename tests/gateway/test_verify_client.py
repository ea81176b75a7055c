"""Verify services that go away, come back, or serve something else: seen through a gateway process."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from slipstream import Client
from slipstream.rpc.errors import UnavailableError
from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess

LONG = {"ignore_eos": True, "max_tokens": 40, "seed": 3, "min_tokens": 2}


@pytest.fixture
def two() -> Iterator[tuple[FakeVerify, FakeVerify]]:
    with FakeVerify() as first, FakeVerify() as second:
        yield first, second


def test_starts_without_verify_and_finds_it_later(tokenizer_folder: Path) -> None:
    with FakeVerify() as verify:
        verify.stop()
        with GatewayProcess(tokenizer_folder, verify.address, wait_ready=False) as gateway:
            body = {"model": "tiny", "prompt": "x"}
            answer = httpx.post(f"{gateway.http_url}/v1/completions", json=body)
            assert (answer.status_code, answer.json()["error"]["type"]) == (503, "service_unavailable_error")
            assert httpx.get(f"{gateway.http_url}/v1/models").status_code == 503
            assert httpx.get(f"{gateway.http_url}/health").status_code == 200
            verify.start()
            gateway.wait_ready()
            assert httpx.post(f"{gateway.http_url}/v1/completions", json=body).status_code == 200


def test_requests_go_to_the_least_loaded_replica(tokenizer_folder: Path, two: tuple[FakeVerify, FakeVerify]) -> None:
    first, second = two
    first.script.step_seconds = second.script.step_seconds = 0.02
    with (
        GatewayProcess(tokenizer_folder, f"{first.address},{second.address}") as gateway,
        Client(gateway.grpc_address) as client,
    ):
        streams = [client.stream("x", **LONG) for _ in range(6)]
        for stream in streams:
            next(stream)
        assert abs(len(first.seen.submits) - len(second.seen.submits)) <= 2
        for stream in streams:
            stream.close()


def test_a_stream_goes_on_at_another_replica_without_a_changed_token(
    tokenizer_folder: Path, two: tuple[FakeVerify, FakeVerify]
) -> None:
    by_port = {verify.port: verify for verify in two}
    with (
        GatewayProcess(tokenizer_folder, ",".join(verify.address for verify in two)) as gateway,
        Client(gateway.grpc_address) as client,
    ):
        undisturbed = client.generate("Hello there", **LONG)
        for verify in by_port.values():
            verify.reset(step_seconds=0.01)
        stream = client.stream("Hello there", **LONG)
        events = [next(stream) for _ in range(5)]
        serving = next(verify for verify in two if verify.seen.submits)
        serving.stop()
        events += stream
        other = next(verify for verify in two if verify is not serving)
    assert tuple(token for event in events for token in event.token_ids) == undisturbed.token_ids
    assert "".join(event.text for event in events) == undisturbed.text
    assert events[-1].usage is not None
    assert events[-1].usage.completion_tokens == 40
    resumed = other.seen.submits[0]
    assert tuple(resumed.output_token_ids) == undisturbed.token_ids[: len(resumed.output_token_ids)]
    assert resumed.sampling.seed == 3


def test_what_a_draining_replica_gives_back_goes_to_another(
    tokenizer_folder: Path, two: tuple[FakeVerify, FakeVerify]
) -> None:
    first, second = two
    with (
        GatewayProcess(tokenizer_folder, f"{first.address},{second.address}") as gateway,
        Client(gateway.grpc_address) as client,
    ):
        first.reset(error=UnavailableError("draining"))
        for _ in range(4):
            assert client.generate("abc", max_tokens=3).text == "abc"
        assert len(first.seen.submits) <= 1
        second.reset(error=UnavailableError("draining"))
        with pytest.raises(UnavailableError, match=r"draining|ready"):
            client.generate("abc", max_tokens=3)
        gateway.wait_ready(ready=False)


def test_a_stream_waits_for_the_only_replica_to_come_back(tokenizer_folder: Path) -> None:
    with (
        FakeVerify() as verify,
        GatewayProcess(tokenizer_folder, verify.address, "--resume-seconds", "10") as gateway,
        Client(gateway.grpc_address) as client,
    ):
        undisturbed = client.generate("Hello there", **LONG)
        verify.reset(step_seconds=0.01)
        stream = client.stream("Hello there", **LONG)
        events = [next(stream) for _ in range(3)]
        verify.stop()
        gateway.wait_ready(ready=False)
        verify.start()
        events += stream
        assert tuple(token for event in events for token in event.token_ids) == undisturbed.token_ids


def test_waiting_for_a_replica_ends_in_unavailable(tokenizer_folder: Path) -> None:
    with (
        FakeVerify() as verify,
        GatewayProcess(tokenizer_folder, verify.address, "--resume-seconds", "0.2") as gateway,
        Client(gateway.grpc_address) as client,
    ):
        verify.reset(step_seconds=0.01)
        stream = client.stream("Hello there", **LONG)
        next(stream)
        verify.stop()
        with pytest.raises(UnavailableError, match="went away"):
            list(stream)


def test_a_replica_of_another_model_is_not_used(tokenizer_folder: Path) -> None:
    with FakeVerify() as first, FakeVerify(fingerprint="0" * 64) as second:
        second.stop()
        with (
            GatewayProcess(tokenizer_folder, f"{first.address},{second.address}") as gateway,
            Client(gateway.grpc_address) as client,
        ):
            second.start()
            second.wait_for(lambda _: "serves another model" in gateway.logs, seconds=10)
            client.generate("x", max_tokens=1)
            assert not second.seen.submits
            first.stop()
            gateway.wait_ready()
            assert client.generate("x", max_tokens=1).text == "x"
            assert len(second.seen.submits) == 1


def test_a_reader_too_slow_loses_its_request(tokenizer_folder: Path) -> None:
    body = json.dumps(
        {"model": "tiny", "prompt": "x", "stream": True, "ignore_eos": True, "logprobs": 20, "max_tokens": 90_000}
    )
    with (
        FakeVerify(max_context=100_000) as verify,
        GatewayProcess(tokenizer_folder, verify.address, "--max-buffered-steps", "64") as gateway,
        socket.socket() as connection,
    ):
        verify.reset(tokens_per_step=20)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = gateway.http_url.removeprefix("http://").split(":")
        connection.connect((host, int(port)))
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        connection.sendall((head + body).encode())
        verify.wait_for(lambda seen: len(seen.cancels) == 1, seconds=20)
        received = b""
        while part := connection.recv(1 << 20):
            received = (received + part)[-1000:]
    assert b"left more than 64 outputs unread" in received
    assert b"[DONE]" not in received
