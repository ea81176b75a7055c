"""Verify services that go away, come back, or serve something else: seen through a gateway process."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from gateway.core.request import ChoiceRequest, Sampling, StepOutput
from gateway.replicas.quarantine import LONE_LOSSES
from gateway.replicas.resumable_stream import ResumableStream
from gateway.replicas.verify_client import VerifyClient
from slipstream import Client, SpeculationOptions
from slipstream.generation_types import FinishReason
from slipstream.rpc.errors import (
    InternalError,
    InvalidArgumentError,
    ResourceExhaustedError,
    SlipstreamError,
    UnavailableError,
)
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
            answer = httpx.post(f"{gateway.http_url}/v1/completions", json=body, timeout=60)
            assert (answer.status_code, answer.json()["error"]["type"]) == (503, "service_unavailable_error")
            assert httpx.get(f"{gateway.http_url}/v1/models", timeout=60).status_code == 503
            assert httpx.get(f"{gateway.http_url}/health", timeout=60).status_code == 200
            verify.start()
            gateway.wait_ready()
            assert httpx.post(f"{gateway.http_url}/v1/completions", json=body, timeout=60).status_code == 200
            assert " WARNING " not in gateway.logs


def test_requests_go_to_the_least_loaded_replica(tokenizer_folder: Path, two: tuple[FakeVerify, FakeVerify]) -> None:
    first, second = two
    first.script.step_seconds = second.script.step_seconds = 0.2
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
    with (
        GatewayProcess(tokenizer_folder, ",".join(verify.address for verify in two)) as gateway,
        Client(gateway.grpc_address) as client,
    ):
        undisturbed = client.generate("Hello there", **LONG)
        for verify in two:
            verify.reset(step_seconds=0.2)
        stream = client.stream("Hello there", **LONG)
        events = [next(stream) for _ in range(5)]
        serving = next(verify for verify in two if verify.seen.submits)
        serving.stop()
        for verify in two:
            verify.script.step_seconds = 0.0
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


def test_a_replica_of_another_model_is_not_used(tokenizer_folder: Path) -> None:
    with FakeVerify() as first, FakeVerify(fingerprint="0" * 64) as second:
        second.stop()
        with (
            GatewayProcess(tokenizer_folder, f"{first.address},{second.address}") as gateway,
            Client(gateway.grpc_address) as client,
        ):
            second.start()
            second.wait_for(lambda _: "serves another model" in gateway.logs)
            client.generate("x", max_tokens=1)
            assert not second.seen.submits
            first.stop()
            gateway.wait_ready()
            assert client.generate("x", max_tokens=1).text == "x"
            assert len(second.seen.submits) == 1


def test_a_stream_never_goes_on_under_another_model(tokenizer_folder: Path) -> None:
    with (
        FakeVerify() as first,
        FakeVerify(fingerprint="0" * 64) as second,
        GatewayProcess(tokenizer_folder, f"{first.address},{second.address}", "--resume-seconds", "0.3") as gateway,
        Client(gateway.grpc_address) as client,
    ):
        first.wait_for(lambda _: "serves another model" in gateway.logs)
        for verify in (first, second):
            verify.reset(step_seconds=0.2)
        stream = client.stream("Hello there", **LONG)
        next(stream)
        serving, other = (first, second) if first.seen.submits else (second, first)
        serving.stop()
        with pytest.raises(UnavailableError, match="went away"):
            list(stream)
        assert not other.seen.submits


def test_a_stream_waits_for_its_own_model_while_another_is_served(tokenizer_folder: Path) -> None:
    with (
        FakeVerify() as old,
        FakeVerify(fingerprint="0" * 64) as new,
        GatewayProcess(tokenizer_folder, old.address) as alone,
        Client(alone.grpc_address) as client,
    ):
        undisturbed = client.generate("Hello there", **LONG)
        new.stop()
        with (
            GatewayProcess(tokenizer_folder, f"{old.address},{new.address}", "--resume-seconds", "60") as gateway,
            Client(gateway.grpc_address) as client,
        ):
            new.start()
            new.wait_for(lambda _: "serves another model" in gateway.logs)
            old.reset(step_seconds=0.2)
            stream = client.stream("Hello there", **LONG)
            events = [next(stream) for _ in range(3)]
            old.stop()
            old.script.step_seconds = 0.0
            gateway.wait_ready()
            assert client.generate("x", max_tokens=1).text == "x"
            assert len(new.seen.submits) == 1
            old.start()
            events += stream
            assert len(new.seen.submits) == 1
        assert tuple(token for event in events for token in event.token_ids) == undisturbed.token_ids


def test_a_request_that_breaks_every_session_fails_alone(tokenizer_folder: Path) -> None:
    with (
        FakeVerify() as verify,
        GatewayProcess(tokenizer_folder, verify.address) as gateway,
        Client(gateway.grpc_address) as client,
        ThreadPoolExecutor(5) as pool,
    ):
        poison, *prompts = [list(client.tokenize(text)) for text in ("poison", "Hello", "abc", "def", "x y")]
        verify.reset(poison=poison[0], first_seconds=0.3)  # none gets a token while the culprit is there
        others = [pool.submit(client.generate, token_ids=prompt, max_tokens=8, timeout=60) for prompt in prompts]
        verify.wait_for(lambda seen: len(seen.submits) == len(prompts))
        with pytest.raises(InternalError, match=r"\d times while this request ran alone"):
            client.generate(token_ids=poison, max_tokens=8, timeout=60)
        answers = [other.result() for other in others]
    losses = sum(list(submit.prompt_token_ids) == poison for submit in verify.seen.submits)
    assert LONE_LOSSES <= losses <= LONE_LOSSES + 3
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.token_ids == tuple((prompt * 8)[:8])


def test_losses_between_tokens_do_not_add_up(tokenizer_folder: Path) -> None:
    with (
        FakeVerify() as verify,
        GatewayProcess(tokenizer_folder, verify.address, "--resume-seconds", "60") as gateway,
        Client(gateway.grpc_address) as client,
    ):
        verify.reset(error_after=1)
        assert client.generate("abc", max_tokens=7, timeout=60).text == "abcabca"
        assert len(verify.seen.submits) > LONE_LOSSES + 2


@pytest.mark.parametrize(
    ("error", "proposers"),
    [
        (ResourceExhaustedError("the queue is full"), ["ngram", "ngram", "ngram"]),
        (InvalidArgumentError("not attached", field="speculation.proposer"), ["ngram", "ngram", ""]),
    ],
)
def test_a_stream_is_not_refused_when_it_goes_on(
    gateway: GatewayProcess, verify: FakeVerify, error: SlipstreamError, proposers: list[str]
) -> None:
    verify.reset(breaks=[4], resumed_errors=[error])
    with Client(gateway.grpc_address) as client:
        answer = client.generate("abc", max_tokens=7, speculation=SpeculationOptions(proposer="ngram"), timeout=60)
    assert answer.text == "abcabca"
    assert [submit.speculation.proposer for submit in verify.seen.submits] == proposers


def test_an_output_that_cannot_be_handled_is_a_lost_session(caplog: pytest.LogCaptureFixture) -> None:
    outputs: list[StepOutput] = []
    failures = ["unheard of"]

    async def run(address: str) -> None:
        finished = asyncio.Event()

        def deliver(output: StepOutput) -> None:
            if failures:
                raise KeyError(failures.pop())
            outputs.append(output)
            if output.finish_reason is not None:
                finished.set()

        client = VerifyClient([address], timeout=5.0, resume_seconds=60.0)
        await client.start()
        try:
            async with asyncio.timeout(60):
                while not client.ready:  # noqa: ASYNC110  # no event tells
                    await asyncio.sleep(0.01)
                resumable = ResumableStream(ChoiceRequest([5, 6, 7], Sampling(max_tokens=6, seed=1)), deliver)
                client.submit([resumable])
                await finished.wait()
            assert client.ready
            assert resumable.received == [5, 6, 7, 5, 6, 7]
        finally:
            await client.close()

    with FakeVerify() as verify:
        asyncio.run(run(verify.address))
        assert len(verify.seen.submits) == 2
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    assert "unheard of" in caplog.text


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
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        connection.sendall((head + body).encode())
        verify.wait_for(lambda seen: len(seen.cancels) == 1)
        received = b""
        while part := connection.recv(1 << 20):
            received = (received + part)[-1000:]
    assert b"left more than 64 outputs unread" in received
    assert b"[DONE]" not in received
