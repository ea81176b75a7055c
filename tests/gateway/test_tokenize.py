"""/tokenize, /detokenize and /version, in vLLM's shapes."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import PreTrainedTokenizerFast

from slipstream import Client
from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess
from support.openai_api import CHAT

MESSAGES = [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "Hello é 東京"}]


@pytest.fixture(scope="module")
def reference(tokenizer_folder: Path) -> PreTrainedTokenizerFast:
    loaded = PreTrainedTokenizerFast.from_pretrained(tokenizer_folder)
    assert isinstance(loaded, PreTrainedTokenizerFast)
    return loaded


def ask(gateway: GatewayProcess, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.post(f"{gateway.http_url}/{path}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def refused(gateway: GatewayProcess, path: str, body: dict[str, Any]) -> tuple[int, str | None, str]:
    """Status, field and message."""
    answer = httpx.post(f"{gateway.http_url}/{path}", json=body, timeout=60)
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["message"]


def test_a_prompt(gateway: GatewayProcess, reference: PreTrainedTokenizerFast) -> None:
    ids = reference.encode("Hello é 東京")
    answer = ask(gateway, "tokenize", {"model": "tiny", "prompt": "Hello é 東京"})
    assert answer == {"count": len(ids), "max_model_len": 512, "tokens": ids, "token_strs": None}
    named = ask(gateway, "tokenize", {"prompt": "Hello é 東京", "return_token_strs": True, "add_special_tokens": False})
    assert named["tokens"] == reference.encode("Hello é 東京", add_special_tokens=False)
    assert named["token_strs"] == reference.convert_ids_to_tokens(named["tokens"])
    assert ask(gateway, "tokenize", {"prompt": ""})["tokens"] == reference.encode("")
    assert ask(gateway, "detokenize", {"model": "tiny", "tokens": ids}) == {"prompt": reference.decode(ids)}


def test_messages_have_the_prompt_of_a_chat(gateway: GatewayProcess, verify: FakeVerify) -> None:
    body = CHAT | {"messages": MESSAGES, "max_tokens": 1}
    assert httpx.post(f"{gateway.http_url}/v1/chat/completions", json=body, timeout=60).status_code == 200
    asked = list(verify.seen.submits[0].prompt_token_ids)
    assert ask(gateway, "tokenize", {"messages": MESSAGES})["tokens"] == asked
    text = ask(gateway, "detokenize", {"tokens": asked})["prompt"]
    assert "<|user|>" in text
    assert ask(gateway, "tokenize", {"prompt": text, "add_special_tokens": False})["tokens"] == asked
    unfinished = ask(gateway, "tokenize", {"messages": MESSAGES, "add_generation_prompt": False})["tokens"]
    assert unfinished == asked[: len(unfinished)] != asked
    with Client(gateway.grpc_address) as client:
        assert list(client.tokenize(messages=MESSAGES)) == asked


@pytest.mark.parametrize(
    ("path", "body", "field", "words"),
    [
        ("tokenize", {}, "prompt", "either prompt or messages"),
        ("tokenize", {"prompt": "x", "messages": MESSAGES}, "prompt", "either prompt or messages"),
        ("tokenize", {"prompt": ["x"]}, "prompt", "valid string"),
        ("tokenize", {"prompt": "x", "wings": 1}, "wings", "unknown parameter"),
        ("tokenize", {"prompt": "x" * 400_000}, "prompt", "context is 512 tokens"),
        ("tokenize", {"prompt": "東" * 400}, "prompt", "context is 512 tokens; the prompt has"),
        ("tokenize", {"messages": []}, "messages", "at least 1"),
        ("tokenize", {"messages": [{"role": "user", "content": "x" * 5000}]}, "messages", "512 tokens"),
        ("tokenize", {"messages": MESSAGES, "chat_template": "x"}, "chat_template", "not supported"),
        ("tokenize", {"messages": MESSAGES, "continue_final_message": True}, "continue_final_message", "false only"),
        ("tokenize", {"messages": MESSAGES, "tools": [{}]}, "tools[0].type", "missing"),
        ("detokenize", {}, "tokens", "missing required parameter"),
        ("detokenize", {"tokens": "x"}, "tokens", "valid array"),
        ("detokenize", {"tokens": [1, -1]}, "tokens[1]", "greater than or equal to 0"),
        ("detokenize", {"tokens": [1, 512]}, "tokens", "below 512"),
        ("detokenize", {"tokens": [1] * 512}, "tokens", "context is 512 tokens"),
        ("detokenize", {"tokens": [1] * 20_000}, "tokens", "context is 512 tokens"),
    ],
)
def test_what_is_wrong_is_named(
    gateway: GatewayProcess, path: str, body: dict[str, Any], field: str, words: str
) -> None:
    status, param, message = refused(gateway, path, body)
    assert (status, param) == (400, field), message
    assert words in message


def test_other_models_and_other_media_types_are_refused(gateway: GatewayProcess) -> None:
    assert refused(gateway, "tokenize", {"model": "gpt-9", "prompt": "x"})[:2] == (404, "model")
    assert refused(gateway, "detokenize", {"model": "gpt-9", "tokens": [1]})[:2] == (404, "model")
    assert httpx.post(f"{gateway.http_url}/tokenize", content=b'{"prompt": "x"}', timeout=60).status_code == 415
    assert httpx.post(f"{gateway.http_url}/tokenize", json={"prompt": "x" * 2_000_000}, timeout=60).status_code == 413


def test_the_version_is_that_of_the_package(gateway: GatewayProcess) -> None:
    answer = httpx.get(f"{gateway.http_url}/version", timeout=60)
    assert answer.json() == {"version": importlib.metadata.version("slipstream-server")}
