"""The id of a request, from its head to every kind of answer."""

from __future__ import annotations

import logging
import re

import grpc
import httpx
import openai
import pytest

from gateway.core import request_id
from gateway.http.errors import error_response
from slipstream.v1 import gateway_pb2, gateway_pb2_grpc
from support import raw_http
from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess
from support.openai_api import CHAT
from support.raw_http import exchange, request, statuses

MADE = re.compile("[0-9a-f]{32}")
BODY = {"model": "tiny", "prompt": "abc", "max_tokens": 3}
STREAM = BODY | {"stream": True}
CLOSE = {"connection": "close"}


def ids(answer: bytes) -> list[str]:
    """The ids of all responses in `answer`."""
    return [found.decode() for found in re.findall(rb"\r\nx-request-id: (.*?)\r\n", answer)]


@pytest.mark.parametrize("given", [b"a", b"req_0-9.A:b/c+d=", b"x" * 128])
def test_a_well_formed_id_is_kept(given: bytes) -> None:
    assert request_id.choose([(b"host", b"h"), (b"x-request-id", given)]) == given.decode()


@pytest.mark.parametrize("given", [b"", b"a b", b"x" * 129, b"a\x0b", b'a"', b"a\xe9", b"%0a"])
def test_another_one_is_replaced(given: bytes) -> None:
    assert MADE.fullmatch(request_id.choose([(b"x-request-id", given)]))


def test_two_ids_are_none_and_new_ones_differ() -> None:
    headers = [(b"x-request-id", b"a"), (b"x-request-id", b"a")]
    assert MADE.fullmatch(request_id.choose(headers))
    assert request_id.choose(headers) != request_id.choose([])


def test_the_log_of_an_unexpected_error_names_the_request(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        assert error_response(ValueError("x"), "req-7").status_code == 500
    assert "unexpected error in request req-7" in caplog.text
    assert request_id.of({"type": "http", "state": {request_id.STATE_KEY: "req-7"}}) == "req-7"
    assert request_id.of({"type": "http"}) == ""


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (request("POST", "/v1/completions", BODY, raw_http.JSON | CLOSE, "X-Request-Id: mine\r\n"), 200),
        (request("POST", "/v1/completions", STREAM, raw_http.JSON | CLOSE, "X-REQUEST-ID: mine\r\n"), 200),
        (request("POST", "/v1/completions", {}, raw_http.JSON | CLOSE, "x-request-id: mine\r\n"), 400),
        (request("GET", "/v1/nothing", headers=CLOSE, lines="x-request-id: mine\r\n"), 404),
        (request("GET", "/health", headers=CLOSE | {"host": "evil.example"}, lines="x-request-id: mine\r\n"), 403),
        (request("GET", "/health", lines="x-request-id: mine\r\n" + "x: y\r\n" * 101), 431),
    ],
)  # fmt: skip
def test_every_answer_has_the_id_of_its_request(gateway: GatewayProcess, raw: bytes, status: int) -> None:
    answer = exchange(gateway.http_url, [raw])
    assert (statuses(answer), ids(answer)) == ([status], ["mine"])
    (made,) = ids(exchange(gateway.http_url, [re.sub(rb"(?i)x-request-id: mine\r\n", b"", raw)]))
    assert MADE.fullmatch(made)


def test_requests_of_one_connection_have_their_own_ids(gateway: GatewayProcess) -> None:
    parts = [request("GET", "/health", lines=f"x-request-id: {name}\r\n") for name in ("a", "b", "c")]
    assert ids(exchange(gateway.http_url, [b"".join(parts)], end=True)) == ["a", "b", "c"]
    with raw_http.connect(gateway.http_url) as connection:
        connection.sendall(parts[0])
        answer = b""
        while b"process_id" not in answer:
            answer += connection.recv(65536)
        connection.sendall(b"\r\n" * 40_000)
        while received := connection.recv(65536):
            answer += received
    assert statuses(answer) == [200, 431]
    assert ids(answer)[0] == "a"
    assert MADE.fullmatch(ids(answer)[1])


def test_the_official_client_reads_it(gateway: GatewayProcess, verify: FakeVerify) -> None:
    client = openai.OpenAI(base_url=f"{gateway.http_url}/v1", api_key="none", max_retries=0)
    answer = client.chat.completions.create(**CHAT, max_tokens=1, extra_headers={"X-Request-Id": "mine"})
    assert answer._request_id == "mine"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**CHAT, max_tokens=0)
    assert MADE.fullmatch(caught.value.request_id or "")
    assert MADE.fullmatch(httpx.get(f"{gateway.http_url}/metrics", timeout=60).headers["x-request-id"])


PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_it_goes_to_the_verify_service_with_the_parent_span(gateway: GatewayProcess, verify: FakeVerify) -> None:
    verify.reset(breaks=[1])
    headers = {"X-Request-Id": "carried-1", "traceparent": PARENT, "tracestate": "a=1"}
    httpx.post(f"{gateway.http_url}/v1/completions", json=BODY | {"n": 2}, headers=headers, timeout=60)
    assert len(verify.seen.submits) > 2, "nothing was resumed"
    for submit in verify.seen.submits:
        context = submit.context
        assert (context.request_id, context.traceparent, context.tracestate) == ("carried-1", PARENT, "a=1")


def test_callers_of_the_grpc_api_are_told_it_too(gateway: GatewayProcess, verify: FakeVerify) -> None:
    verify.reset()
    with grpc.insecure_channel(gateway.grpc_address) as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        asked = gateway_pb2.GenerateRequest(text="abc")
        asked.sampling.max_tokens = 2
        named = (("x-request-id", "carried-2"), ("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b=2"))
        call = stub.Generate(asked, metadata=named, timeout=60)
        list(call)
        assert dict(call.initial_metadata())["x-request-id"] == "carried-2"
        call = stub.Generate(asked, timeout=60)
        list(call)
        assert MADE.fullmatch(dict(call.initial_metadata())["x-request-id"])
        asked.sampling.max_tokens = 0
        call = stub.Generate(asked, metadata=(("x-request-id", "carried-3"),), timeout=60)
        with pytest.raises(grpc.RpcError):
            list(call)
        assert not call.initial_metadata()
        assert dict(call.trailing_metadata())["x-request-id"] == "carried-3"
    first, second = (submit.context for submit in verify.seen.submits)
    assert (first.request_id, first.traceparent, first.tracestate) == ("carried-2", PARENT, "a=1,b=2")
    assert MADE.fullmatch(second.request_id)
    assert not second.traceparent
