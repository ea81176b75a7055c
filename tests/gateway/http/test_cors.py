"""Pages of named origins, as their browsers ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess

PAGE = "https://chat.example.org"
ALLOWED = "access-control-allow-origin"
BODY = {"model": "tiny", "prompt": "abc", "max_tokens": 2}
PREFLIGHT = {
    "access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type,x-a"
}  # fmt: skip


@pytest.fixture(scope="module")
def open_gateway(shared_verify: FakeVerify, tokenizer_folder: Path) -> Iterator[GatewayProcess]:
    """A gateway that pages of PAGE may use."""
    named = ("--allowed-origins", f"{PAGE}/,http://other.example")
    with GatewayProcess(tokenizer_folder, shared_verify.address, *named) as process:
        yield process


def ask(gateway: GatewayProcess, origin: str, **body: object) -> httpx.Response:
    return httpx.post(f"{gateway.http_url}/v1/completions", json=BODY | body, headers={"origin": origin}, timeout=60)


def preflight(gateway: GatewayProcess, origin: str) -> httpx.Response:
    url = f"{gateway.http_url}/v1/completions"
    return httpx.options(url, headers={"origin": origin, **PREFLIGHT}, timeout=60)


def test_a_named_page_is_let_in_and_may_read_the_answer(open_gateway: GatewayProcess, verify: FakeVerify) -> None:
    asked = preflight(open_gateway, PAGE)
    assert (asked.status_code, asked.headers[ALLOWED]) == (200, PAGE)
    assert asked.headers["access-control-allow-headers"] == PREFLIGHT["access-control-request-headers"]
    assert "POST" in asked.headers["access-control-allow-methods"]
    for stream in (False, True, True):
        answer = ask(open_gateway, PAGE, stream=stream)
        assert (answer.status_code, answer.headers.get_list(ALLOWED)) == (200, [PAGE])
        assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
        assert answer.headers["x-request-id"]
        assert "access-control-allow-credentials" not in answer.headers


def test_it_may_read_refusals_too(open_gateway: GatewayProcess) -> None:
    url, origin = f"{open_gateway.http_url}/v1/completions", {"origin": PAGE}
    for answer, status in (
        (ask(open_gateway, PAGE, max_tokens=0), 400),
        (httpx.post(url, content=b"{}", headers=origin, timeout=60), 415),
        (httpx.post(url, json=BODY, headers=origin | {"host": "evil.example"}, timeout=60), 403),
        (httpx.get(f"{open_gateway.http_url}/v1/nothing", headers=origin, timeout=60), 404),
    ):
        assert (answer.status_code, answer.headers[ALLOWED]) == (status, PAGE)


def test_other_pages_are_refused_as_before(open_gateway: GatewayProcess, verify: FakeVerify) -> None:
    assert preflight(open_gateway, "https://evil.example").status_code == 400
    answer = ask(open_gateway, "https://evil.example")
    assert (answer.status_code, ALLOWED in answer.headers) == (403, False)
    assert verify.seen.submits == []


def test_without_the_setting_there_are_no_cors_headers(gateway: GatewayProcess) -> None:
    page = "http://localhost:3000"
    for answer, status in ((preflight(gateway, page), 405), (ask(gateway, page), 200), (ask(gateway, PAGE), 403)):
        assert answer.status_code == status
        assert not [name for name in answer.headers if name.startswith("access-control-")]
