"""The way of requests that generate past the web framework, whose layers would see every part of every stream."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.access.access_log import access_of
from gateway.http.api import OpenAiApi


class DirectEndpoints:
    """ASGI middleware that answers POST to the endpoints that generate, as `app` would; all else is for `app`.

    HEAD is for it a GET (RFC 9110, section 9.3.2), of whose answer the server writes the head alone.

    An error is answered if nothing has been; else it is raised, and the server closes the connection.
    """

    def __init__(self, app: ASGIApp, api: OpenAiApi) -> None:
        self._app = app
        self._api = api
        self._endpoints = {"/v1/completions": api.complete, "/v1/chat/completions": api.chat}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        called = scope["type"] == "http" and scope["method"] == "POST"
        endpoint = self._endpoints.get(scope["path"]) if called else None
        if endpoint is None:
            is_head = scope["type"] == "http" and scope["method"] == "HEAD"
            await self._app({**scope, "method": "GET"} if is_head else scope, receive, send)
            return
        request = Request(scope, receive, send)
        try:
            response = await endpoint(request)
            await response(scope, receive, send)
        except Exception as error:
            if access_of(scope).answered:
                raise
            explain = self._api.on_cut_off if isinstance(error, ClientDisconnect) else self._api.on_error
            response = await explain(request, error)
            await response(scope, receive, send)
