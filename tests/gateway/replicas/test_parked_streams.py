"""What waits for a verify service: how long, against which limits, and how it leaves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from gateway.core.request import ChoiceRequest, Sampling
from gateway.replicas.parked_streams import ParkedStreams
from gateway.replicas.resumable_stream import ResumableStream
from slipstream import Client
from slipstream.rpc.errors import ResourceExhaustedError, UnavailableError
from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess

LONG = {"ignore_eos": True, "max_tokens": 200, "seed": 3, "timeout": 60}


def resumable() -> ResumableStream:
    return ResumableStream(ChoiceRequest([1], Sampling(seed=0)), lambda output: None)


def test_streams_go_on_in_order_and_not_before_their_time() -> None:
    parking = ParkedStreams()
    parked = [resumable() for _ in range(4)]
    for index, each in enumerate(parked):
        parking.add(each, not_before=float(index))
    parking.sort(lambda each: parked.index(each) < 2)
    assert list(parking) == [parked[2], parked[3], parked[0], parked[1]]
    assert [parking.is_due(each, 1.5) for each in parked] == [True, True, False, False]
    assert parking.discard(parked[2])
    assert not parking.discard(parked[2])
    assert len(parking) == 3


def test_who_leaves_while_the_room_is_gone_through_is_passed_over() -> None:
    parking = ParkedStreams()
    parked = [resumable() for _ in range(3)]
    for each in parked:
        parking.add(each)
    seen = []
    for each in parking:
        seen.append(each)
        parking.discard(parked[1])
    assert seen == [parked[0], parked[2]]
    assert len(parking) == 2


@pytest.fixture(scope="module")
def started(tokenizer_folder: Path) -> Iterator[tuple[FakeVerify, GatewayProcess]]:
    with (
        FakeVerify(max_requests=4) as verify,
        GatewayProcess(tokenizer_folder, verify.address, "--resume-seconds", "60") as gateway,
    ):
        yield verify, gateway


@pytest.fixture
def pair(started: tuple[FakeVerify, GatewayProcess]) -> Iterator[tuple[FakeVerify, GatewayProcess]]:
    """A verify service that may be stopped, and a gateway in front of it that waits a minute."""
    verify, gateway = started
    verify.reset()
    yield started
    if not verify.running:
        verify.start()
    gateway.wait_ready()


def metric(gateway: GatewayProcess, name: str) -> float:
    lines = httpx.get(f"{gateway.http_url}/metrics", timeout=60).text.splitlines()
    (value,) = [line.split()[1] for line in lines if line.startswith(f"slipstream_gateway_{name} ")]
    return float(value)


def wait_metric(gateway: GatewayProcess, name: str, value: float) -> None:
    end = time.monotonic() + 60
    while metric(gateway, name) != value:
        assert time.monotonic() < end, gateway.logs
        time.sleep(0.02)


def test_a_stream_waits_for_the_only_replica_to_come_back(pair: tuple[FakeVerify, GatewayProcess]) -> None:
    verify, gateway = pair
    with Client(gateway.grpc_address) as client:
        undisturbed = client.generate("Hello there", **LONG)
        verify.reset(step_seconds=0.1)
        resumed, pauses = metric(gateway, "resumed_choices_total"), metric(gateway, "pause_seconds_count")
        stream = client.stream("Hello there", **LONG)
        events = [next(stream) for _ in range(3)]
        verify.stop()
        verify.script.step_seconds = 0.0
        gateway.wait_ready(ready=False)
        wait_metric(gateway, "paused_choices", 1)
        verify.start()
        events += stream
    assert tuple(token for event in events for token in event.token_ids) == undisturbed.token_ids
    assert metric(gateway, "resumed_choices_total") == resumed + 1
    assert metric(gateway, "pause_seconds_count") == pauses + 1
    assert metric(gateway, "paused_choices") == 0


def test_requests_that_come_meanwhile_wait_too_up_to_a_limit(pair: tuple[FakeVerify, GatewayProcess]) -> None:
    verify, gateway = pair
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 5}
    url = f"{gateway.http_url}/v1/completions"
    with Client(gateway.grpc_address) as client, ThreadPoolExecutor(4) as pool:
        verify.stop()
        gateway.wait_ready(ready=False)
        waiting = [pool.submit(client.generate, "abc", max_tokens=5, timeout=60) for _ in range(3)]
        whole = pool.submit(httpx.post, url, json=body, timeout=60)
        wait_metric(gateway, "paused_choices", 4)
        with pytest.raises(ResourceExhaustedError, match="the limit is 4"):
            client.generate("abc", max_tokens=5, timeout=60)
        assert httpx.post(url, json=body, timeout=60).status_code == 429
        verify.start()
        assert [answer.result().text for answer in waiting] == ["abcab"] * 3
        assert whole.result().json()["choices"][0]["text"] == "abcab"
    assert metric(gateway, "paused_choices") == 0
    assert metric(gateway, "running_choices") == 0


def test_a_client_that_leaves_while_it_waits_is_forgotten(pair: tuple[FakeVerify, GatewayProcess]) -> None:
    verify, gateway = pair
    verify.reset(step_seconds=0.1)
    with Client(gateway.grpc_address) as client, httpx.Client(timeout=60) as web:
        stream = client.stream("Hello there", **LONG)
        next(stream)
        body = {"model": "tiny", "prompt": "Hello there", "max_tokens": 400, "stream": True}
        with web.stream("POST", f"{gateway.http_url}/v1/completions", json=body) as reply:
            lines = reply.iter_lines()  # closes the connection when it is dropped
            next(lines)
            verify.stop()
            wait_metric(gateway, "paused_choices", 2)
            stream.close()
        wait_metric(gateway, "paused_choices", 0)
        wait_metric(gateway, "running_choices", 0)
        verify.reset()
        verify.start()
        gateway.wait_ready()
        client.generate("abc", max_tokens=1)
    assert len(verify.seen.submits) == 1


@pytest.mark.parametrize(("fact", "value"), [("fingerprint", "0" * 64), ("version", "2")])
def test_a_service_that_comes_back_as_another_is_not_resumed_on(
    pair: tuple[FakeVerify, GatewayProcess], monkeypatch: pytest.MonkeyPatch, fact: str, value: str
) -> None:
    verify, gateway = pair
    verify.reset(step_seconds=0.1)
    with Client(gateway.grpc_address) as client:
        stream = client.stream("Hello there", **LONG)
        next(stream)
        verify.stop()
        verify.reset()
        with monkeypatch.context() as changes:
            changes.setattr(verify, fact, value)
            verify.start()
            with pytest.raises(UnavailableError, match="went away, and came back with another model or build"):
                list(stream)
            gateway.wait_ready()
            assert client.generate("x", max_tokens=1).text == "x"
            verify.stop()
    assert len(verify.seen.submits) == 1


def test_a_stream_does_not_go_on_at_a_service_that_was_replaced_after_it_had_given_its_facts(
    pair: tuple[FakeVerify, GatewayProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    verify, gateway = pair
    verify.reset(step_seconds=0.1)
    with Client(gateway.grpc_address) as client, monkeypatch.context() as changes:
        changes.setattr(verify, "fingerprint", verify.fingerprint)
        stream = client.stream("Hello there", **LONG)
        next(stream)
        verify.stop()
        verify.reset(successor="0" * 64)
        verify.start()
        with pytest.raises(UnavailableError, match="came back with another model or build"):
            list(stream)
        verify.stop()


def test_what_a_drain_leaves_unfinished_goes_on_later(pair: tuple[FakeVerify, GatewayProcess]) -> None:
    verify, gateway = pair
    verify.reset(breaks=[4], resumed_errors=[UnavailableError("the service stops")])
    with Client(gateway.grpc_address) as client, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.generate, "abc", max_tokens=7, timeout=60)
        verify.wait_for(lambda seen: len(seen.submits) == 2)
        gateway.wait_ready(ready=False)
        with pytest.raises(UnavailableError, match="no verify service is ready"):
            client.generate("abc", max_tokens=7, timeout=60)
        verify.stop()
        verify.start()
        assert answer.result().text == "abcabca"
    assert len(verify.seen.submits) == 3


def test_waits_end_in_unavailable(tokenizer_folder: Path) -> None:
    with (
        FakeVerify() as verify,
        GatewayProcess(tokenizer_folder, verify.address, "--resume-seconds", "1.5") as gateway,
        Client(gateway.grpc_address) as client,
        httpx.Client(timeout=60) as web,
    ):
        verify.reset(step_seconds=0.1)
        stream = client.stream("Hello there", **LONG)
        next(stream)
        body = {"model": "tiny", "prompt": "Hello there", "max_tokens": 400, "stream": True}
        with web.stream("POST", f"{gateway.http_url}/v1/completions", json=body) as reply:
            lines = reply.iter_lines()
            next(lines)
            verify.stop()
            gateway.wait_ready(ready=False)
            late = web.post(f"{gateway.http_url}/v1/completions", json=body | {"stream": False})
            assert late.status_code == 503
            assert "verify service" in late.json()["error"]["message"]
            *_, last = [line for line in lines if line]
        assert "service_unavailable_error" in last
        with pytest.raises(UnavailableError, match=r"went away, and the request did not go on within 1\.5 s"):
            list(stream)
        with pytest.raises(UnavailableError, match="no verify service is ready"):  # as the time to wait has passed
            client.generate("x", max_tokens=1, timeout=60)


def test_nobody_waits_where_the_operator_says_so(tokenizer_folder: Path) -> None:
    with (
        FakeVerify() as verify,
        GatewayProcess(tokenizer_folder, verify.address, "--resume-seconds", "0") as gateway,
        Client(gateway.grpc_address) as client,
    ):
        verify.reset(step_seconds=0.1)
        stream = client.stream("Hello there", **LONG)
        next(stream)
        verify.stop()
        with pytest.raises(UnavailableError, match=r"went away$"):
            list(stream)
        with pytest.raises(UnavailableError, match="no verify service is ready"):
            client.generate("x", max_tokens=1, timeout=60)
