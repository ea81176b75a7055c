"""Bodies as clients and load generators send them: their first requests, and second turns with the answer sent back."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess
from support.openai_api import CHAT, post

FIRST = CHAT["messages"][0]
NEXT = {"role": "user", "content": "And then?"}
STREAMED = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
"""As guidellm asks for usage."""

BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "guidellm chat": (
        "chat/completions",
        STREAMED
        | {"max_completion_tokens": 4, "stop": None, "ignore_eos": True}
        | {"messages": [FIRST | {"content": [{"type": "text", "text": "Tell me."}]}]},
    ),
    "guidellm completions": (
        "completions", STREAMED | {"max_tokens": 4, "stop": None, "ignore_eos": True, "prompt": "Tell me."}
    ),
    "guidellm completions, both names of the limit": (
        "completions", {"prompt": "Tell me.", "max_tokens": 4, "max_completion_tokens": 4, "stop": None}
    ),
    "genai-perf chat": (
        "chat/completions",
        {"messages": [FIRST], "stream": True, "max_tokens": 4, "min_tokens": 4, "ignore_eos": True},
    ),
    "genai-perf completions": ("completions", {"prompt": "Tell me.", "stream": True, "max_tokens": 4}),
    "aiperf chat": (
        "chat/completions",
        {"messages": [FIRST], "max_completion_tokens": 4, "stream": True, "stream_options": {"include_usage": True}},
    ),
    "vLLM's benchmark": (
        "completions",
        {"prompt": "Tell me.", "repetition_penalty": 1.0, "max_tokens": 4, "logprobs": None, "temperature": 0.0,
         "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True},
    ),
    "SGLang's benchmark": (
        "completions",
        {"prompt": "Tell me.", "temperature": 0.0, "best_of": 1, "max_tokens": 4, "stream": True, "ignore_eos": True},
    ),
    "lm-evaluation-harness": (
        "completions", {"prompt": [[300, 301, 302]], "max_tokens": 4, "temperature": 0, "stop": ["\n\n"], "seed": 1234}
    ),
    "LangChain": (
        "chat/completions",
        {"messages": [{"content": "You are terse.", "role": "system"}, {"content": "Tell me.", "role": "user"}],
         "stream": False, "temperature": 0.7, "n": 1, "max_completion_tokens": 4, "parallel_tool_calls": None},
    ),
    "a chat page": (
        "chat/completions",
        {"messages": [FIRST], "stream": True, "metadata": {"chat_id": "1"}, "tools": [], "max_tokens": 4,
         "safety_identifier": "s", "service_tier": "auto", "store": False, "prompt_cache_key": "k"},
    ),
}  # fmt: skip

ANSWERS: dict[str, dict[str, Any]] = {
    "LiteLLM": {"tool_calls": None, "function_call": None, "provider_specific_fields": {"refusal": None}},
    "LiteLLM, with annotations": {"annotations": [], "provider_specific_fields": {}, "reasoning_content": None},
    "LangChain": {"refusal": None, "tool_calls": [], "name": None},
    "LangChain, with blocks": {"content": [{"type": "text", "text": "Hi.", "index": 0, "annotations": []}]},
    "vLLM's own answer": {"refusal": None, "annotations": None, "audio": None, "tool_calls": [], "reasoning": None},
}
"""What each adds to {"role": "assistant", "content": "Hi."}."""


@pytest.mark.parametrize("name", BODIES)
def test_bodies_of_clients_are_taken(gateway: GatewayProcess, name: str) -> None:
    path, body = BODIES[name]
    response = post(gateway, path, {"model": "tiny"} | body)
    assert response.status_code == 200, response.text
    if body.get("stream"):
        assert response.text.endswith("data: [DONE]\n\n")


def test_second_turns_have_the_prompt_of_a_plain_one(gateway: GatewayProcess, verify: FakeVerify) -> None:
    for extra in ({}, *ANSWERS.values()):
        messages = [FIRST, {"role": "assistant", "content": "Hi."} | extra, NEXT]
        response = post(gateway, "chat/completions", CHAT | {"messages": messages, "max_tokens": 1})
        assert response.status_code == 200, response.text
    plain, *others = [list(submit.prompt_token_ids) for submit in verify.seen.submits]
    assert others == [plain] * len(ANSWERS)


def test_the_official_client_sends_its_own_answer_back(gateway: GatewayProcess, verify: FakeVerify) -> None:
    client = openai.OpenAI(base_url=f"{gateway.http_url}/v1", api_key="none", max_retries=0)
    answer = client.chat.completions.create(**CHAT, max_tokens=8).choices[0].message
    again: list[Any] = [FIRST, answer, NEXT]
    client.chat.completions.create(model="tiny", messages=again, max_tokens=1)
    again[1] = answer.model_dump()
    client.chat.completions.create(model="tiny", messages=again, max_tokens=1)
    again[1] = {"role": "assistant", "content": answer.content}
    client.chat.completions.create(model="tiny", messages=again, max_tokens=1)
    _, *second = [list(submit.prompt_token_ids) for submit in verify.seen.submits]
    assert second == [second[0]] * 3
