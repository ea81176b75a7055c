"""Requests refused by their headers: of web pages from elsewhere, without a media type, and ambiguous ones."""

from __future__ import annotations

from pathlib import Path

import grpc
import httpx
import pytest

from slipstream.v1 import gateway_pb2, gateway_pb2_grpc
from support import raw_http
from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess
from support.raw_http import exchange, request, statuses

BODY = {"model": "tiny", "prompt": "abc", "max_tokens": 1}
CLOSE = {"connection": "close"}


def post(gateway: GatewayProcess, headers: dict[str, str], lines: str = "") -> tuple[int, str]:
    """Status and answer of a completion asked for with these headers."""
    answer = exchange(gateway.http_url, [request("POST", "/v1/completions", BODY, headers | CLOSE, lines)])
    (status,) = statuses(answer)
    return status, answer.decode()


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", "Application/JSON", "application/vnd.api+json"]
)
def test_json_is_taken_under_its_names(gateway: GatewayProcess, kind: str) -> None:
    assert post(gateway, {"content-type": kind})[0] == 200


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""])
def test_a_body_of_another_kind_is_refused(gateway: GatewayProcess, verify: FakeVerify, kind: str | None) -> None:
    status, answer = post(gateway, {} if kind is None else {"content-type": kind})
    assert (status, "application/json" in answer, '"param":"content-type"' in answer) == (415, True, True)
    assert verify.seen.submits == []


def test_a_body_that_is_declared_compressed_is_refused(gateway: GatewayProcess, verify: FakeVerify) -> None:
    for coding in ("identity", "Identity"):
        assert post(gateway, raw_http.JSON | {"content-encoding": coding})[0] == 200
    seen = len(verify.seen.submits)
    for coding in ("gzip", "br, gzip", ""):
        status, answer = post(gateway, raw_http.JSON | {"content-encoding": coding})
        assert (status, '"param":"content-encoding"' in answer) == (415, True)
    assert len(verify.seen.submits) == seen


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ({"host": "evil.example"}, "host"),
        ({"host": "evil.example:8000"}, "host"),
        ({"origin": "http://evil.example"}, "origin"),
        ({"origin": "null"}, "origin"),
    ],
)
def test_a_web_page_from_elsewhere_is_refused(
    gateway: GatewayProcess, verify: FakeVerify, headers: dict[str, str], field: str
) -> None:
    status, answer = post(gateway, raw_http.JSON | headers)
    assert (status, f'"param":"{field}"' in answer) == (403, True)
    assert verify.seen.submits == []
    assert statuses(exchange(gateway.http_url, [request("GET", "/v1/models", headers=headers | CLOSE)])) == [403]


def test_a_page_of_this_machine_is_let_in(gateway: GatewayProcess) -> None:
    assert post(gateway, raw_http.JSON | {"origin": "http://localhost:3000"})[0] == 200


def test_one_host_header_is_needed(gateway: GatewayProcess) -> None:
    assert post(gateway, raw_http.JSON, "host: localhost\r\n")[0] == 400
    assert statuses(exchange(gateway.http_url, [b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n"])) == [400]
    assert statuses(exchange(gateway.http_url, [b"GET /health HTTP/1.0\r\n\r\n"])) == [200]


def test_two_keys_are_refused_over_http(gateway: GatewayProcess, verify: FakeVerify) -> None:
    status, answer = post(gateway, raw_http.JSON | {"authorization": "Bearer a"}, "Authorization: Bearer b\r\n")
    assert (status, "authorization is given twice" in answer) == (401, True)
    assert verify.seen.submits == []


def test_two_keys_are_refused_over_grpc(gateway: GatewayProcess) -> None:
    with grpc.insecure_channel(gateway.grpc_address) as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        metadata = (("authorization", "Bearer a"), ("authorization", "Bearer b"))
        with pytest.raises(grpc.RpcError) as caught:
            stub.ListModels(gateway_pb2.ListModelsRequest(), metadata=metadata, timeout=60)
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "authorization is given twice" in (caught.value.details() or "")


def test_names_can_be_given_and_keys_make_them_needless(tokenizer_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('[keys]\nsk-good = "red"\n', "utf-8")
    named = ("--host", "0.0.0.0", "--allowed-hosts", "api.example.org,llm")
    with FakeVerify() as verify:
        with GatewayProcess(tokenizer_folder, verify.address, *named) as gateway:
            for host, status in (("api.example.org:443", 200), ("LLM", 200), ("evil.example", 403), ("10.9.8.7", 200)):
                assert httpx.get(f"{gateway.http_url}/ready", headers={"host": host}, timeout=60).status_code == status
        keyed = ("--api-keys-file", str(file), "--allowed-origins", "*")
        with GatewayProcess(tokenizer_folder, verify.address, *keyed) as gateway:
            headers = raw_http.JSON | {"host": "evil.example", "authorization": "Bearer sk-good"}
            assert post(gateway, headers)[0] == 200
            assert post(gateway, headers | {"authorization": "Bearer sk-bad"})[0] == 401
            for key, status in (("Bearer sk-good", 200), ("Bearer sk-bad", 401)):
                found, answer = post(gateway, headers | {"authorization": key, "origin": "https://chat.example.org"})
                asked = {"prompt": "x"}
                tokenised = httpx.post(
                    f"{gateway.http_url}/tokenize", json=asked, headers={"authorization": key}, timeout=60
                )
                assert tokenised.status_code == status
                assert (found, "access-control-allow-origin: *\r\n" in answer) == (status, True)
