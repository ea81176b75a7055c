"""Bounds of HTTP/1.1 itself: heads, bodies that do not come, pipelining, and clients that end their sending side."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support import raw_http
from support.ask import wait_until
from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess
from support.raw_http import exchange, request, statuses

BODY = {"model": "tiny", "prompt": "abc", "max_tokens": 3}
CHUNKED = request("POST", "/v1/completions", headers=raw_http.JSON | {"transfer-encoding": "chunked"}).replace(
    b"content-length: 0\r\n", b""
)
PROBE = request("GET", "/health")


def chunks(body: bytes, size: int) -> bytes:
    """The parts of a chunked body, without its last chunk."""
    parts = [body[begin : begin + size] for begin in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)


@pytest.fixture(scope="module")
def hasty(tokenizer_folder: Path) -> Iterator[tuple[GatewayProcess, FakeVerify]]:
    """A gateway with short deadlines."""
    arguments = ("--head-seconds", "1", "--body-seconds", "1", "--keep-alive-seconds", "60", "--reader-seconds", "2")
    with FakeVerify() as verify, GatewayProcess(tokenizer_folder, verify.address, *arguments) as gateway:
        yield gateway, verify


def outcomes(gateway: GatewayProcess) -> dict[str, float]:
    """Requests counted by status."""
    text = httpx.get(f"{gateway.http_url}/metrics", timeout=60).text
    found = re.findall(r'^slipstream_gateway_requests_total\{api="http",outcome="(\d+)"\} (\S+)$', text, re.MULTILINE)
    return {status: float(count) for status, count in found}


@pytest.mark.parametrize(
    ("raw", "status", "words"),
    [
        (request("GET", "/health", lines="x: y\r\n" * 101), 431, b"more than 100 header lines"),
        (request("GET", "/health", headers={"x": "a" * 70_000}), 431, b"more than 65536 bytes"),
        (request("GET", "/health", lines=f"x: {'a' * 1000}\r\n" * 70), 431, b"more than 65536 bytes"),
        (request("GET", "/health", headers={"a" * 70_000: "x"}), 431, b"more than 65536 bytes"),
        (request("GET", "/" + "a" * 9000), 414, b"more than 8192 bytes"),
        (CHUNKED + b"1;" + b"x" * 700_000 + b"\r\n", 431, b"chunk extensions"),
        (CHUNKED + b"1\r\n{\r\n0\r\n" + b"x: y\r\n" * 101 + b"\r\n", 431, b"more than 100 header lines"),
        (CHUNKED + b"1\r\n{\r\n0\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", 431, b"more than 65536 bytes"),
        (b"\r\n" * 40_000, 431, b"more than 65536 bytes"),
        (b"\x16\x03\x01 this is TLS", 400, b"not valid HTTP/1.1"),
    ],
)
def test_what_is_too_long_is_refused_before_anybody_looks_at_it(
    gateway: GatewayProcess, raw: bytes, status: int, words: bytes
) -> None:
    answer = exchange(gateway.http_url, [raw])
    assert statuses(answer) == [status], answer
    assert words in answer
    assert b'"type":"invalid_request_error"' in answer


def test_a_header_of_ten_megabytes_is_answered_and_never_held(gateway: GatewayProcess) -> None:
    def memory() -> int:
        return int(Path(f"/proc/{gateway.process.pid}/statm").read_text().split()[1]) * 4096

    before, most = memory(), 0
    parts = [b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: ", *[b"a" * 100_000] * 100, b"\r\n\r\n"]

    def watched() -> Iterator[bytes]:
        nonlocal most
        for part in parts:
            yield part
            most = max(most, memory())

    assert statuses(exchange(gateway.http_url, watched())) == [431]
    assert most - before < 4_000_000


def test_long_heads_within_the_bounds_are_taken(gateway: GatewayProcess) -> None:
    whole = request("GET", "/health", lines=f"x: {'a' * 650}\r\n" * 97, headers={"connection": "close"})
    assert 63_000 < len(whole) < 65_536
    slow = [whole[begin : begin + 9_000] for begin in range(0, len(whole), 9_000)]
    for parts in ([whole], slow):
        assert statuses(exchange(gateway.http_url, parts)) == [200]


def test_a_body_in_chunks_of_one_byte_is_taken_and_its_trailers_are_no_headers(
    gateway: GatewayProcess, verify: FakeVerify
) -> None:
    body = b'{"model": "tiny", "prompt": "' + b"a" * 300 + b'", "max_tokens": 1}'
    raw = CHUNKED + chunks(body, 1) + b"0\r\nauthorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n"
    follower = request("GET", "/v1/models", headers={"authorization": "Bearer c", "connection": "close"})
    assert statuses(exchange(gateway.http_url, [raw, follower])) == [200, 200]


def test_requests_that_wait_on_one_connection_are_bounded(gateway: GatewayProcess) -> None:
    assert statuses(exchange(gateway.http_url, [PROBE * 10], end=True)) == [200] * 10
    answered = statuses(exchange(gateway.http_url, [PROBE * 1000]))
    assert answered == [200] * 17


@pytest.mark.parametrize(
    ("raw", "answer"),
    [
        (b"", []),
        (b"GET /health HT", [408]),
        (b"\r\n", []),
        (request("POST", "/v1/completions", BODY)[:-2], [408]),
        (CHUNKED + b"1\r\n", [408]),
    ],
)
def test_a_client_that_keeps_the_server_waiting_is_given_up(
    hasty: tuple[GatewayProcess, FakeVerify], raw: bytes, answer: list[int]
) -> None:
    assert statuses(exchange(hasty[0].http_url, [raw], timeout=30)) == answer


def test_a_head_that_dribbles_in_has_no_more_time(hasty: tuple[GatewayProcess, FakeVerify]) -> None:
    begun = time.monotonic()

    def dribble() -> Iterator[bytes]:
        for byte in PROBE + request("GET", "/health", lines="x: y\r\n" * 90):
            yield bytes([byte])
            time.sleep(0.05)

    assert statuses(exchange(hasty[0].http_url, dribble(), timeout=30)) == [408]
    assert time.monotonic() - begun < 20


def test_a_connection_may_rest_between_requests_longer_than_a_head_takes(
    hasty: tuple[GatewayProcess, FakeVerify],
) -> None:
    def rested() -> Iterator[bytes]:
        yield PROBE
        time.sleep(1.5)
        yield request("GET", "/health", headers={"connection": "close"})

    assert statuses(exchange(hasty[0].http_url, rested(), timeout=30)) == [200, 200]


def test_a_client_that_reads_nothing_loses_its_connection(hasty: tuple[GatewayProcess, FakeVerify]) -> None:
    gateway, verify = hasty
    verify.reset(tokens_per_step=1)
    with raw_http.connect(gateway.http_url) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(request("GET", "/openapi.json") * 16 * 8)
        deadline = time.monotonic() + 60
        while open_connections(gateway) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def open_connections(gateway: GatewayProcess) -> int:
    """Those open, the one of the question included."""
    text = httpx.get(f"{gateway.http_url}/metrics", timeout=60).text
    return int(float(re.findall(r"^slipstream_gateway_http_connections (\S+)$", text, re.MULTILINE)[0]))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("first_seconds", [0.0, 0.7])
def test_a_client_that_ends_its_sending_side_gets_its_answer(
    gateway: GatewayProcess, verify: FakeVerify, stream: bool, first_seconds: float
) -> None:
    verify.reset(first_seconds=first_seconds, step_seconds=0.3)
    answer = exchange(gateway.http_url, [request("POST", "/v1/completions", BODY | {"stream": stream})], end=True)
    assert statuses(answer) == [200]
    assert (b"data: [DONE]" if stream else b'"completion_tokens":3') in answer
    assert verify.seen.cancels == []


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_closes_after_it_ended_its_sending_side_is_noticed(
    gateway: GatewayProcess, verify: FakeVerify, stream: bool
) -> None:
    verify.reset(stall_after=1)
    with raw_http.connect(gateway.http_url) as connection:
        connection.sendall(request("POST", "/v1/completions", BODY | {"stream": stream}))
        verify.wait_for(lambda seen: len(seen.submits) == 1)
        connection.shutdown(socket.SHUT_WR)
        time.sleep(0.3)
        assert verify.seen.cancels == []
    verify.wait_for(lambda seen: len(seen.cancels) == 1)


def test_a_cut_off_upload_is_counted_without_a_traceback(gateway: GatewayProcess) -> None:
    before = outcomes(gateway).get("499", 0.0)
    raw = request("POST", "/v1/completions", BODY)
    for count in range(1, 4):
        assert exchange(gateway.http_url, [raw[: -2 * count]], end=True) == b""
    deadline = time.monotonic() + 30
    while outcomes(gateway).get("499", 0.0) < before + 3:
        assert time.monotonic() < deadline, outcomes(gateway)
        time.sleep(0.05)
    assert "Traceback" not in gateway.logs


def test_beyond_the_limit_the_one_that_waits_longest_gives_way_to_a_new_one(tokenizer_folder: Path) -> None:
    with (
        FakeVerify() as verify,
        GatewayProcess(tokenizer_folder, verify.address, "--max-connections", "8") as gateway,
        httpx.Client(base_url=gateway.http_url, timeout=60) as client,
    ):
        verify.reset(step_seconds=0.2)
        with client.stream("POST", "/v1/completions", json=BODY | {"stream": True, "max_tokens": 400}) as stream:
            idle = [raw_http.connect(gateway.http_url) for _ in range(7)]
            time.sleep(1.2)  # from which time on a connection that says nothing may be closed
            assert httpx.get(f"{gateway.http_url}/health", timeout=60).status_code == 200
            late, answers = [], []

            def refused() -> bool:
                """Whether one more is, while all others are still too new to be closed."""
                late.extend(raw_http.connect(gateway.http_url) for _ in range(7))
                answers.append(exchange(gateway.http_url, [request("GET", "/v1/models")]))
                return statuses(answers[-1]) == [503]

            wait_until(refused, lambda: answers[-1])
            assert b"retry-after: 1\r\n" in answers[-1]
            assert statuses(exchange(gateway.http_url, [PROBE])) == [200]
            assert [connection.recv(1) for connection in idle] == [b""] * 7
            verify.script.step_seconds = 0.0
            assert "".join(stream.iter_text()).endswith("data: [DONE]\n\n")
        for connection in (*idle, *late):
            connection.close()
    assert "Traceback" not in gateway.logs


def test_a_large_body_that_stalls_is_late_as_a_small_one_is(hasty: tuple[GatewayProcess, FakeVerify]) -> None:
    gateway, _ = hasty
    head = request("POST", "/v1/completions", headers=raw_http.JSON | {"content-length": "1000000"})
    begun = time.monotonic()
    assert statuses(exchange(gateway.http_url, [head, b"x" * 120_000])) == [408]
    assert time.monotonic() - begun < 30


def test_an_upgrade_is_not_offered_and_hides_no_request(gateway: GatewayProcess) -> None:
    upgrade = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"
    whole = request("POST", "/v1/completions", BODY, lines=upgrade)
    begin = whole.index(b"\r\n\r\n") + 4
    for parts in ([whole], [whole[:begin], PROBE]):
        assert statuses(exchange(gateway.http_url, parts)) == [400]
    bare = request("GET", "/health", lines=upgrade).replace(b"content-length: 0\r\n", b"")
    assert statuses(exchange(gateway.http_url, [bare, PROBE])) == [200]
