"""Requests that generate reach their endpoints past the web framework, and end as within it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from gateway.access.access_log import AccessLog, AccessLogged, access_of
from gateway.http.direct import DirectEndpoints
from gateway.http.errors import error_response
from slipstream.rpc.errors import CancelledError, InvalidArgumentError
from support.gateway_process import GatewayProcess
from support.raw_http import exchange, request


class Endpoints:
    """Endpoints that do what they are told, and the answers to errors."""

    def __init__(self, fault: Exception | None = None, *, begins: bool = False) -> None:
        self._fault = fault
        self._begins = begins
        self.explained: list[type[Exception]] = []

    async def complete(self, request: Request) -> Response:
        if self._begins:
            return Broken(self._fault)
        if self._fault is not None:
            raise self._fault
        return PlainTextResponse((await request.body()).decode())

    chat = complete

    async def on_error(self, request: Request, error: Exception) -> Response:
        self.explained.append(type(error))
        access_of(request.scope).fails(error)
        return error_response(error)

    async def on_cut_off(self, request: Request, error: Exception) -> Response:
        return await self.on_error(request, CancelledError("gone"))


class Broken(Response):
    """Begins, and fails."""

    def __init__(self, fault: Exception | None) -> None:
        super().__init__()
        self._fault = fault

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        assert self._fault is not None
        raise self._fault


def call(endpoints: Endpoints, method: str = "POST", path: str = "/v1/completions") -> tuple[int, bytes]:
    """Status and body of the answer; 0 where there is none."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"asked", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": [], "http_version": "1.1"}
    direct = DirectEndpoints(PlainTextResponse("the framework"), endpoints)  # type: ignore[arg-type]  # alike
    asyncio.run(AccessLogged(direct, AccessLog(enabled=False))(scope, receive, send))
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_endpoints_that_generate_answer_themselves(path: str) -> None:
    assert call(Endpoints(), path=path) == (200, b"asked")


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/completions"), ("POST", "/tokenize"), ("GET", "/health")])
def test_all_else_is_for_the_framework(method: str, path: str) -> None:
    assert call(Endpoints(), method, path) == (200, b"the framework")


@pytest.mark.parametrize(
    ("fault", "status", "explained"),
    [
        (InvalidArgumentError("no", field="prompt"), 400, InvalidArgumentError),
        (ClientDisconnect(), 499, CancelledError),
        (KeyError("unheard of"), 500, KeyError),
    ],
)
def test_an_error_before_the_answer_is_the_answer(fault: Exception, status: int, explained: type[Exception]) -> None:
    endpoints = Endpoints(fault)
    found, body = call(endpoints)
    assert (found, endpoints.explained) == (status, [explained])
    assert b"unheard of" not in body


def test_an_error_in_the_midst_of_an_answer_is_for_the_server_which_closes_the_connection() -> None:
    endpoints = Endpoints(KeyError("unheard of"), begins=True)
    with pytest.raises(KeyError):
        call(endpoints)
    assert not endpoints.explained


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/models", "/v1/models/tiny", "/metrics", "/"])
def test_head_is_answered_as_get_is_without_a_body(gateway: GatewayProcess, path: str) -> None:
    got, head = (
        exchange(gateway.http_url, [request(method, path, headers={"connection": "close"})])
        for method in ("GET", "HEAD")
    )
    assert got.startswith(b"HTTP/1.1 200")
    assert head.startswith(b"HTTP/1.1 200")
    assert not got.endswith(b"\r\n\r\n")
    assert head.endswith(b"\r\n\r\n")


def test_head_of_what_is_only_posted_is_refused(gateway: GatewayProcess) -> None:
    answer = exchange(gateway.http_url, [request("HEAD", "/v1/completions", headers={"connection": "close"})])
    assert answer.startswith(b"HTTP/1.1 405")
    assert answer.endswith(b"\r\n\r\n")
