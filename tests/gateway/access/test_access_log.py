"""One line a request, in both APIs, with its figures and without its words."""

from __future__ import annotations

import json
import logging
import re
import time
from pathlib import Path

import grpc
import httpx
import pytest

from gateway.access.access_log import Access, AccessLog, access_of_grpc
from slipstream import Client
from slipstream.request_context import NO_CONTEXT
from slipstream.rpc.errors import InvalidArgumentError, UnavailableError
from slipstream.v1 import gateway_pb2, gateway_pb2_grpc
from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess
from support.openai_api import post

SECRET = "zanzibar"


def lines_of(gateway: GatewayProcess, words: str, count: int = 1) -> list[str]:
    """Lines that have these words, once there are so many."""
    end = time.monotonic() + 60
    while len(found := [line for line in gateway.logs.splitlines() if words in line]) < count:
        assert time.monotonic() < end, gateway.logs
        time.sleep(0.01)
    return found


def test_a_completion_has_one_line_with_its_figures(gateway: GatewayProcess, verify: FakeVerify) -> None:
    verify.reset(tokens_per_step=3)
    answer = post(gateway, "completions", {"model": "tiny", "prompt": SECRET, "max_tokens": 9}).json()
    (line,) = lines_of(gateway, answer["id"])
    assert re.search(r' 127\.0\.0\.1:\d+ "POST /v1/completions" 200 id=cmpl-\w+ model=tiny ', line)
    tokens = f"prompt_tokens={answer['usage']['prompt_tokens']} cached_tokens=3 completion_tokens=9"
    assert tokens in line
    assert re.search(
        r" ttft=\d\.\d{3} acceptance_length=3\.000 drafted_tokens=12 accepted_tokens=6 finish_reason=length ", line
    )
    assert re.search(r" seconds=\d+\.\d{3} request_id=\w+$", line)
    assert SECRET not in gateway.logs


def test_a_stream_of_several_choices_says_how_each_ended(gateway: GatewayProcess, verify: FakeVerify) -> None:
    verify.reset()
    messages = [{"role": "user", "content": SECRET}]
    reply = post(gateway, "chat/completions", {"model": "tiny", "messages": messages, "n": 2, "max_tokens": 3,
                                               "stream": True})  # fmt: skip
    first = json.loads(reply.text.splitlines()[0].removeprefix("data: "))
    (line,) = lines_of(gateway, first["id"])
    assert '"POST /v1/chat/completions" 200' in line
    assert "completion_tokens=6" in line
    assert "choices=2 finish_reason=length" in line


def test_a_call_of_the_grpc_api_has_one_too(gateway: GatewayProcess, verify: FakeVerify) -> None:
    verify.reset(tokens_per_step=2)
    with grpc.insecure_channel(gateway.grpc_address) as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        request = gateway_pb2.GenerateRequest(text=SECRET)
        request.sampling.max_tokens = 4
        list(stub.Generate(request, metadata=(("x-request-id", "order-66"),), timeout=60))
    (line,) = lines_of(gateway, "request_id=order-66")
    assert '"gRPC Generate" OK model=tiny' in line
    assert "completion_tokens=4" in line
    assert "acceptance_length=2.000 drafted_tokens=8 accepted_tokens=2 finish_reason=length" in line
    with Client(gateway.grpc_address) as client, pytest.raises(InvalidArgumentError):
        client.generate(SECRET, temperature=-1.0)
    assert lines_of(gateway, 'gRPC Generate" INVALID_ARGUMENT error=invalid_request_error param=sampling.temperature')


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"prompt": SECRET, "max_tokens": 0}, "400 error=invalid_request_error param=max_tokens"),
        ({"prompt": SECRET, "model": SECRET}, "404 error=not_found_error param=model"),
    ],
)
def test_a_refusal_names_the_kind_and_the_field(gateway: GatewayProcess, verify: FakeVerify, body, words) -> None:
    post(gateway, "completions", {"model": "tiny"} | body)
    assert lines_of(gateway, f'"POST /v1/completions" {words} seconds=')
    assert SECRET not in gateway.logs


def test_an_error_in_mid_stream_and_a_client_that_leaves_are_told(gateway: GatewayProcess, verify: FakeVerify) -> None:
    body = {"model": "tiny", "prompt": "abc", "stream": True, "ignore_eos": True}
    verify.reset(stall_after=2)
    url, left, broken = f"{gateway.http_url}/v1/completions", {"X-Request-Id": "left-7"}, {"X-Request-Id": "broken-7"}
    with httpx.stream("POST", url, json=body, headers=left, timeout=60) as reply:
        next(reply.iter_lines())
    # A break that came right behind the outputs could overtake them.
    verify.reset(breaks=[2], step_seconds=0.05, resumed_errors=[InvalidArgumentError("no")])
    assert '"error"' in httpx.post(url, json=body, headers=broken, timeout=60).text
    (line,) = lines_of(gateway, "request_id=broken-7")
    assert "finish_reason=error" in line
    assert '"POST /v1/completions" 200 ' in line
    assert "completion_tokens=2 " in line
    assert "error=invalid_request_error" in line
    (line,) = lines_of(gateway, "request_id=left-7")
    assert '"POST /v1/completions" 499 ' in line
    assert "completion_tokens=2 " in line
    assert "finish_reason=cancelled error=cancelled_error" in line


def test_what_supervisors_ask_is_not_told_but_a_list_of_models_is(gateway: GatewayProcess) -> None:
    for path in ("health", "ready", "metrics", "v1/models?key=value", "nowhere"):
        httpx.get(f"{gateway.http_url}/{path}", headers={"X-Request-Id": "supervisor-7"}, timeout=60)
    assert [line for line in lines_of(gateway, '"GET /nowhere" 404') if "request_id=supervisor-7" in line]
    models, nowhere = lines_of(gateway, "request_id=supervisor-7", 2)
    assert '"GET /v1/models" 200' in models
    assert '"GET /nowhere" 404' in nowhere


def test_a_refusal_is_told_wherever_it_is_made(tokenizer_folder: Path, verify: FakeVerify, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('[keys]\n"sk-1" = "red"\n', "utf-8")
    with GatewayProcess(tokenizer_folder, verify.address, "--api-keys-file", str(file)) as gateway:
        assert httpx.get(f"{gateway.http_url}/services", timeout=60).status_code == 401
        held = httpx.get(f"{gateway.http_url}/services", headers={"Authorization": "Bearer sk-1"}, timeout=60)
        assert held.status_code == 200
        assert httpx.get(f"{gateway.http_url}/page/nowhere", timeout=60).status_code == 404
        assert lines_of(gateway, '"GET /services" 401 error=')
        assert lines_of(gateway, '"GET /page/nowhere" 404')
        assert '"GET /services" 200' not in gateway.logs


def test_not_ready_is_told_at_level_debug_and_an_error_of_the_same_number_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    access = Access("GET /ready", "probe", logging.DEBUG, "503")
    AccessLog(enabled=True).end(access)
    assert not caplog.records
    access.fails(UnavailableError("no"))
    AccessLog(enabled=True).end(access)
    assert [record.levelno for record in caplog.records] == [logging.INFO]


def test_without_access_log_and_at_level_debug(tokenizer_folder: Path, verify: FakeVerify) -> None:
    with GatewayProcess(tokenizer_folder, verify.address, "--no-access-log", "--log-level", "debug") as gateway:
        assert post(gateway, "completions", {"model": "tiny", "prompt": SECRET, "max_tokens": 1}).status_code == 200
        assert "choices=1 prompt_tokens=6 speculation=default seed=" in lines_of(gateway, "a request begins")[0]
        assert "/v1/completions" not in gateway.logs
        assert SECRET not in gateway.logs


def test_what_a_caller_wrote_makes_no_line_of_its_own() -> None:
    forged = 'a\n2026 "forged" \x1b[2J' + "x" * 500
    access = access_of_grpc("Generate", f"ipv6:%5B::1%5D:80{forged}", NO_CONTEXT)
    access.fails(InvalidArgumentError("no", field=forged))
    assert access.head.isprintable()
    assert access.head.startswith("%5B::1%5D:80a?2026??forged??")
    assert len(access.head) < 300
    assert access.fields()["param"].startswith("a?2026??forged??")
    assert len(access.fields()["param"]) < 300


def test_as_json_a_line_has_its_figures_as_fields(tokenizer_folder: Path, verify: FakeVerify) -> None:
    verify.reset(tokens_per_step=3)
    with GatewayProcess(tokenizer_folder, verify.address, "--log-format", "json", wait_ready=False) as gateway:
        gateway.wait_ready()
        reply = httpx.post(
            f"{gateway.http_url}/v1/completions",
            json={"model": "tiny", "prompt": SECRET, "max_tokens": 9},
            headers={"X-Request-Id": "json-1"},
            timeout=60,
        )
        (line,) = lines_of(gateway, '"json-1"')
    told = json.loads(line)
    assert re.fullmatch(r"127\.0\.0\.1:\d+", told.pop("peer"))
    assert told.pop("message").endswith(' "POST /v1/completions" 200')
    assert 0 < told.pop("ttft") < told.pop("seconds") < 60
    assert told.pop("time").endswith("Z")
    assert told == {
        "level": "info", "service": "gateway", "logger": "gateway.access.access_log", "call": "POST /v1/completions",
        "status": "200", "id": reply.json()["id"], "model": "tiny", "prompt_tokens": 6, "cached_tokens": 3,
        "completion_tokens": 9, "acceptance_length": 3.0, "drafted_tokens": 12, "accepted_tokens": 6,
        "finish_reason": "length", "request_id": "json-1",
    }  # fmt: skip
