"""Grammars that recurse deep, or come one after the other, in workers with a limit on their memory."""

from __future__ import annotations

import json

import httpx

from support.gateway_process import GatewayProcess

DEEP = {
    "$ref": "#/$defs/0",
    "$defs": {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(900)} | {"900": {"type": "null"}},
}


def ask(gateway: GatewayProcess, schema: object) -> httpx.Response:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 1, "structured_outputs": {"json": json.dumps(schema)}}
    return httpx.post(f"{gateway.http_url}/v1/completions", json=body, timeout=60)


def test_a_long_chain_of_references_ends_no_worker(gateway: GatewayProcess) -> None:
    assert ask(gateway, DEEP).status_code in (200, 400)
    assert "text worker has ended" not in gateway.logs


def test_grammars_one_after_the_other_are_all_checked(gateway: GatewayProcess) -> None:
    for number in range(60):
        answer = ask(gateway, {"enum": [number]})
        assert answer.status_code == 200, answer.text
