"""What the OpenAI API says to bad requests."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from support.gateway_process import GatewayProcess
from support.openai_api import CHAT, post

BAD_CHAT: list[tuple[dict[str, Any], str | None, str]] = [
    ({"messages": []}, "messages", "at least 1"),
    ({"messages": [{"role": "judge", "content": "x"}]}, "messages[0].role", "'system'"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "string"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type", "'text'"),
    ({"messages": [{"role": "user", "content": "x" * 5000}]}, "messages", "512 tokens"),
    ({"messages": [{"role": "user", "content": ""}] * 512}, "messages", "messages has 512 entries"),
    ({"max_tokens": 498}, "max_tokens", "the prompt has 15 and the output asks for 498"),
    ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
    ({"max_tokens": 3, "min_tokens": 4}, "min_tokens", "at most max_tokens"),
    ({"min_tokens": 500}, "min_tokens", "leaves 497"),
    ({"temperature": 2.5}, "temperature", "less than or equal to 2"),
    ({"temperature": "1"}, "temperature", "valid number"),
    ({"top_p": 0}, "top_p", "greater than 0"),
    ({"top_k": -2}, "top_k", "greater than or equal to -1"),
    ({"top_k": 2**31}, "top_k", "less than or equal to 2147483647"),
    ({"min_p": 1.5}, "min_p", "less than or equal to 1"),
    ({"repetition_penalty": 0}, "repetition_penalty", "greater than or equal to 0.01"),
    ({"presence_penalty": 2.5}, "presence_penalty", "less than or equal to 2"),
    ({"frequency_penalty": -2.5}, "frequency_penalty", "greater than or equal to -2"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
    ({"n": 129}, "n", "128"),
    ({"seed": -1}, "seed", "greater than or equal to 0"),
    ({"logit_bias": {"x": 1}}, "logit_bias.x", "pattern"),
    ({"logit_bias": {"07": 1}}, "logit_bias.07", "pattern"),
    ({"logit_bias": {"600": 1}}, "logit_bias", "below 512, got 600"),
    ({"logit_bias": {"6": 101}}, "logit_bias.6", "less than or equal to 100"),
    ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias", "at most 1024"),
    ({"stop_token_ids": [512]}, "stop_token_ids", "below 512"),
    ({"stop": [""]}, "stop[0]", "at least 1 character"),
    ({"stop": ["x"] * 17}, "stop", "at most 16"),
    ({"top_logprobs": 2}, "top_logprobs", "logprobs is true"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "stream is true"),
    ({"speculation": {"max_nodes": 65}}, "speculation.max_nodes", "64"),
    ({"speculation": {"max_depth": 64}}, "speculation.max_depth", "63"),
    ({"speculation": {"proposer": "nobody"}}, "speculation.proposer", "neither configured nor attached"),
    ({"speculation": {"depth": 1}}, "speculation.depth", "unknown parameter"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "'json_object'"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "missing"),
    ({"wings": 2}, "wings", "unknown parameter: wings"),
    ({"model": 3}, "model", "valid string"),
]


@pytest.mark.parametrize(("change", "param", "words"), BAD_CHAT)
def test_a_bad_field_is_named_with_its_limit(
    gateway: GatewayProcess, change: dict[str, Any], param: str, words: str
) -> None:
    response = post(gateway, "chat/completions", CHAT | change)
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param), error
    assert words in error["message"]


@pytest.mark.parametrize(
    ("bias", "field"),
    [
        (b'{"7": 1, "8": 2}', ""),
        (b'{"7": 1, "7": -1}', "logit_bias.7"),
        (b'{"7": 1, "8": 2, "7": 1}', "logit_bias.7"),
        (b'{"7": 1}, "logit_bias": {"8": 1}', "logit_bias"),
        (b'{"7": 1}, "seed": 1, "seed": 2', "seed"),
    ],
)
def test_a_field_that_stands_twice_is_refused(gateway: GatewayProcess, bias: bytes, field: str) -> None:
    text = b'"prompt": "\\"logit_bias\\": {\\"7\\": 1, \\"7\\": 2}", "stop": "logit_bias"'
    for space in (b"", b" \n"):
        body = b'{"model": "tiny", "max_tokens": 1, ' + text + b', "logit_bias"' + space + b":" + space + bias + b"}"
        response = post(gateway, "completions", body)
        assert response.status_code == (400 if field else 200), response.text
        assert not field or response.json()["error"]["param"] == field


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "EOF"),
        (b"{", "EOF"),
        (b"[]", "object"),
        (b"\xff\xfe", "expected value"),
        (b'{"model": "tiny", "prompt": "\xff"}', "unicode"),
        (b'{"model": "tiny", "prompt": "\\ud800"}', "hex escape"),
        (b'{"model": "tiny", "prompt": "x", "temperature": NaN}', "finite number"),
        (b"[" * 100_000, "within one another"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(gateway: GatewayProcess, body: bytes, words: str) -> None:
    response = post(gateway, "completions", body)
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [1, "x"]}, "prompt[1]"),
        ({"prompt": [1, 512]}, "prompt"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "max_tokens": 0, "logprobs": 1}, "max_tokens"),
        ({"prompt": ["x"] * 100, "n": 2}, "n"),
        ({"prompt": [1] * 512}, "prompt"),
        ({}, "prompt"),
    ],
)
def test_bad_prompts_of_completions(gateway: GatewayProcess, body: dict[str, Any], param: str) -> None:
    response = post(gateway, "completions", {"model": "tiny"} | body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text


def test_unknown_model_path_and_method(gateway: GatewayProcess) -> None:
    response = post(gateway, "chat/completions", CHAT | {"model": "gpt-9"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
    for path in ("responses", "embeddings", "messages", "nothing", "x" * 3000):
        missing = post(gateway, path, {"model": "tiny", "input": "x"})
        error = missing.json()["error"]
        assert (missing.status_code, error["type"], error["param"]) == (404, "invalid_request_error", None)
        assert error["code"] == "unknown_url"
        assert f"POST /v1/{path[:100]}" in error["message"]
        assert "is not supported by this server" in error["message"]
        assert len(error["message"]) < 400
    refused = httpx.get(f"{gateway.http_url}/v1/completions", timeout=60)
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")


def test_a_body_of_ten_megabytes_is_refused(gateway: GatewayProcess) -> None:
    response = post(gateway, "chat/completions", b"x" * 10_000_000)
    assert response.status_code == 413
    assert "1048576 bytes" in response.json()["error"]["message"]
