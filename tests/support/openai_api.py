"""Requests to the OpenAI API without the official client, which would not send what is wrong."""

from __future__ import annotations

import json
from typing import Any

import httpx

from support.gateway_process import GatewayProcess

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hello é 東京"}]}


def post(gateway: GatewayProcess, path: str, body: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    return httpx.post(f"{gateway.http_url}/v1/{path}", content=content, headers=headers, timeout=60)
