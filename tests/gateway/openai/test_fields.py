"""Which fields change nothing and are taken, and which are refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.http.errors import error_body
from gateway.openai.messages import for_template
from gateway.openai.schema import ChatCompletionRequest, CompletionRequest
from gateway.text.body import read_body
from slipstream.rpc.errors import InvalidArgumentError

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": "x"}

TAKEN_BY_BOTH: dict[str, Any] = {
    "bad_words": [],
    "early_stopping": True,
    "guided_json": None,
    "ignore_eos": False,
    "include_reasoning": False,
    "include_stop_str_in_output": False,
    "length_penalty": 1.0,
    "logits_processors": [],
    "max_completion_tokens": 5,
    "metadata": {"a": "b"},
    "priority": 0,
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "request_id": "r",
    "return_tokens_as_token_ids": False,
    "safety_identifier": "s",
    "service_tier": "flex",
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "structured_outputs": None,
    "top_k": -1,
    "use_beam_search": False,
    "user": "u",
    "wings": None,
}
TAKEN_BY_CHAT: dict[str, Any] = {
    "add_generation_prompt": True,
    "add_special_tokens": False,
    "chat_template_kwargs": {},
    "continue_final_message": False,
    "documents": [],
    "echo": False,
    "function_call": "none",
    "functions": [],
    "modalities": ["text"],
    "parallel_tool_calls": True,
    "prediction": {"type": "content", "content": "x"},
    "reasoning_effort": "medium",
    "response_format": {"type": "text"},
    "store": False,
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "verbosity": "medium",
}
TAKEN_BY_COMPLETIONS: dict[str, Any] = {"add_special_tokens": True, "best_of": 1, "suffix": ""}

UNSUPPORTED_BY_BOTH: dict[str, Any] = {
    "allowed_token_ids": [1],
    "bad_words": ["x"],
    "cache_salt": "s",
    "guided_json": {"type": "object"},
    "guided_regex": "x*",
    "include_stop_str_in_output": True,
    "priority": 1,
    "return_tokens_as_token_ids": True,
    "separate_reasoning": False,
    "skip_special_tokens": False,
    "truncate_prompt_tokens": 8,
    "use_beam_search": True,
}
UNSUPPORTED_BY_CHAT: dict[str, Any] = {
    "add_generation_prompt": False,
    "add_special_tokens": True,
    "audio": {"voice": "x"},
    "chat_template": "x",
    "continue_final_message": True,
    "documents": [{"text": "x"}],
    "echo": True,
    "function_call": {"name": "f"},
    "functions": [{"name": "f"}],
    "modalities": ["text", "audio"],
    "store": True,
    "verbosity": "low",
    "web_search_options": {},
}
UNSUPPORTED_BY_COMPLETIONS: dict[str, Any] = {"add_special_tokens": False, "best_of": 2, "suffix": "x"}


def read(body: dict[str, Any]) -> ChatCompletionRequest | CompletionRequest:
    data = json.dumps(body).encode()
    return read_body(data, ChatCompletionRequest if "messages" in body else CompletionRequest)[0]


def refused(body: dict[str, Any]) -> tuple[str | None, str | None]:
    """Field and code of the error."""
    with pytest.raises(InvalidArgumentError) as caught:
        read(body)
    error = error_body(caught.value)["error"]
    return error["param"], error["code"]


@pytest.mark.parametrize(
    "body", [CHAT | TAKEN_BY_BOTH | TAKEN_BY_CHAT, COMPLETION | TAKEN_BY_BOTH | TAKEN_BY_COMPLETIONS]
)
def test_what_changes_nothing_is_taken(body: dict[str, Any]) -> None:
    sampling = read(body).sampling()
    assert (sampling.max_tokens, sampling.top_k) == (5, 0)
    without = {name: value for name, value in body.items() if name not in ("max_completion_tokens", "top_k")}
    assert read(without).sampling() == read(CHAT).sampling()


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (CHAT, UNSUPPORTED_BY_BOTH | UNSUPPORTED_BY_CHAT),
        (COMPLETION, UNSUPPORTED_BY_BOTH | UNSUPPORTED_BY_COMPLETIONS),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(body: dict[str, Any], fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        assert refused(body | {name: value}) == (name, "unsupported_parameter")


def test_numbers_are_no_booleans() -> None:
    assert refused(CHAT | {"skip_special_tokens": 1})[0] == "skip_special_tokens"
    assert refused(CHAT | {"store": 0})[0] == "store"
    assert refused(CHAT | {"priority": False})[0] == "priority"


def test_what_nobody_knows_is_refused_as_unknown_wherever_it_stands() -> None:
    part = {"type": "text", "text": "x", "wings": 2}
    assert refused(CHAT | {"wings": 2}) == ("wings", "unknown_parameter")
    assert refused(COMPLETION | {"wings": {}}) == ("wings", "unknown_parameter")
    for messages, place in (
        ([{"role": "user", "wings": 2}], "messages[0].wings"),
        ([{"role": "user", "content": [part]}], "messages[0].content[0].wings"),
    ):
        assert refused(CHAT | {"messages": messages}) == (place, "unknown_parameter")


def test_options_of_a_stream_that_do_not_concern_its_text_are_ignored() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": False, "chunks": 3}
    assert read(COMPLETION | {"stream": True, "stream_options": options}).include_usage
    assert refused(COMPLETION | {"stream": True, "stream_options": {"include_usage": 1}})[0] is not None


def test_best_of_is_taken_where_it_equals_n() -> None:
    assert read(COMPLETION | {"best_of": 3, "n": 3}).choices_per_prompt == 3
    assert refused(COMPLETION | {"best_of": 1, "n": 3}) == ("best_of", "unsupported_parameter")


@pytest.mark.parametrize(
    "extra",
    [
        {"tool_calls": [], "function_call": None, "refusal": None, "audio": None, "annotations": []},
        {"tool_calls": None, "provider_specific_fields": {"refusal": None}, "annotations": [{"type": "url_citation"}]},
        {"refusal": "", "parsed": {"a": 1}, "id": "msg-1", "thinking_blocks": [], "reasoning_content": None},
        {"cache_control": {"type": "ephemeral"}, "prefix": False, "wings": None, "reasoning": ""},
    ],
)
def test_what_clients_send_back_with_an_answer_does_not_change_the_prompt(extra: dict[str, Any]) -> None:
    body = read(CHAT | {"messages": [{"role": "assistant", "content": "Hi.", **extra}]})
    assert isinstance(body, ChatCompletionRequest)
    assert for_template(body.messages[0]) == {"role": "assistant", "content": "Hi."}


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_that_is_sent_back_reaches_the_template(name: str) -> None:
    body = read(CHAT | {"messages": [{"role": "assistant", "content": "Hi.", name: "Hm."}]})
    assert isinstance(body, ChatCompletionRequest)
    assert for_template(body.messages[0]) == {"role": "assistant", "content": "Hi.", "reasoning_content": "Hm."}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("function_call", {"name": "f", "arguments": "{}"}),
        ("refusal", "I will not."),
        ("audio", {"id": "a"}),
        ("prefix", True),
    ],
)
def test_what_a_message_would_lose_is_refused_by_name(name: str, value: Any) -> None:
    place = f"messages[0].{name}"
    assert refused(CHAT | {"messages": [{"role": "assistant", "content": "x", name: value}]}) == (
        place, "unsupported_parameter"
    )  # fmt: skip


def test_parts_that_are_no_text_are_refused_by_name() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    text = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}, "index": 0, "annotations": []}
    content = {"messages": [{"role": "user", "content": [text, image]}]}
    assert refused(CHAT | content) == ("messages[0].content[1].type", "unsupported_parameter")
