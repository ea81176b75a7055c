"""The OpenAI API as the official client sees it."""

from __future__ import annotations

import json
import shutil
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from slipstream import Client, SpeculationOptions
from slipstream.rpc.errors import InvalidArgumentError, ResourceExhaustedError
from support.fake_verify import EOS_ID, FakeVerify
from support.gateway_process import GatewayProcess
from support.openai_api import CHAT, post


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt/4")


def test_chat_in_one_piece(client: openai.OpenAI, verify: FakeVerify) -> None:
    answer = client.chat.completions.create(**CHAT, max_tokens=11, seed=7)
    assert answer.choices[0].message.content == "Hello é 東\ufffd"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (15, 11, 26)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3
    assert answer.model_extra is not None
    assert answer.model_extra["seed"] == 7
    speculation = answer.choices[0].model_extra
    assert speculation is not None
    assert speculation["speculation"] == {
        "verify_steps": 11, "drafted_tokens": 44, "accepted_tokens": 0, "acceptance_length": 1.0
    }  # fmt: skip
    assert verify.seen.submits[0].sampling.seed == 7


def test_chat_streamed_is_the_same_text(client: openai.OpenAI, verify: FakeVerify) -> None:
    verify.reset(tokens_per_step=3)
    whole = client.chat.completions.create(**CHAT, max_tokens=13)
    chunks = list(
        client.chat.completions.create(**CHAT, max_tokens=13, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 13
    assert len({chunk.id for chunk in chunks}) == 1


def test_several_choices_share_prompt_and_seed(client: openai.OpenAI, verify: FakeVerify) -> None:
    answer = client.chat.completions.create(**CHAT, max_tokens=4, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (15, 12)
    assert [submit.choice_index for submit in verify.seen.submits] == [0, 1, 2]
    assert len({submit.sampling.seed for submit in verify.seen.submits}) == 1


def test_streamed_choices_are_told_apart(client: openai.OpenAI) -> None:
    texts = {0: "", 1: ""}
    for chunk in client.chat.completions.create(**CHAT, max_tokens=7, n=2, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == {0: "Hello ", 1: "Hello "}


def test_stop_strings_cut_at_the_deciding_token_and_cancel(client: openai.OpenAI, verify: FakeVerify) -> None:
    verify.reset(tokens_per_step=50, stall_after=1)
    extra = {"ignore_eos": True, "return_token_ids": True}
    answer = client.chat.completions.create(**CHAT, stop=["o é"], extra_body=extra, max_tokens=400)
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Hell", "stop")
    assert choice.model_extra is not None
    assert choice.model_extra["stop_reason"] == "o é"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(choice.model_extra["token_ids"]) == 9
    verify.wait_for(lambda seen: len(seen.cancels) == 1)


def test_the_end_of_sequence_token_ends_the_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**CHAT)
    assert answer.choices[0].message.content == "Hello é 東京"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].model_extra is not None
    assert answer.choices[0].model_extra["stop_reason"] == EOS_ID


def test_chat_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**CHAT, max_tokens=9, logprobs=True, top_logprobs=2)
    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content
    assert content is not None
    assert len(content) == 9
    assert (content[2].token, content[2].logprob, content[2].bytes) == ("H", -0.5, [ord("H")])
    assert [top.logprob for top in content[2].top_logprobs] == [-1.0, -2.0]
    streamed = [
        entry
        for chunk in client.chat.completions.create(**CHAT, max_tokens=9, logprobs=True, stream=True)
        if chunk.choices[0].logprobs is not None
        for entry in chunk.choices[0].logprobs.content or []
    ]
    assert [entry.token for entry in streamed] == [entry.token for entry in content]


def test_completion_prompts_of_every_kind(client: openai.OpenAI, verify: FakeVerify) -> None:
    ids = list(client.completions.create(model="tiny", prompt="abc", max_tokens=3).choices)
    assert ids[0].text == "abc"
    prompt_ids = list(verify.seen.submits[0].prompt_token_ids)
    for prompt, count in (("abc", 1), (["abc", "abc"], 2), (prompt_ids, 1), ([prompt_ids, prompt_ids], 2)):
        answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=3, n=2)
        assert [choice.text for choice in answer.choices] == ["abc"] * 2 * count
        assert [choice.index for choice in answer.choices] == list(range(2 * count))
    assert all(list(submit.prompt_token_ids) == prompt_ids for submit in verify.seen.submits)


def test_completion_echo_and_logprobs(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="tiny", prompt="Hello", max_tokens=2, echo=True)
    assert whole.choices[0].text == "HelloHe"
    streamed = client.completions.create(model="tiny", prompt="Hello", max_tokens=2, echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == "HelloHe"
    answer = client.completions.create(model="tiny", prompt="Hello", max_tokens=3, logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["H", "e", "ll"]
    assert logprobs.text_offset == [0, 1, 2]
    assert logprobs.token_logprobs == [-0.5] * 3
    assert logprobs.top_logprobs == [{"%": -1.0, token: -0.5} for token in ("H", "e", "ll")]


def test_token_ids_are_returned_where_vllm_returns_them(client: openai.OpenAI, verify: FakeVerify) -> None:
    extra = {"return_token_ids": True}
    chat = client.chat.completions.create(**CHAT, max_tokens=3, extra_body=extra)
    prompt = list(verify.seen.submits[0].prompt_token_ids)
    assert chat.model_extra is not None
    assert chat.model_extra["prompt_token_ids"] == prompt
    plain = client.completions.create(model="tiny", prompt=prompt, max_tokens=3, extra_body=extra)
    assert plain.choices[0].model_extra is not None
    assert plain.choices[0].model_extra["prompt_token_ids"] == prompt
    assert plain.choices[0].model_extra["token_ids"] == prompt[:3]
    chunks = list(client.chat.completions.create(**CHAT, max_tokens=3, extra_body=extra, stream=True))
    ids = [i for chunk in chunks for i in (chunk.choices[0].model_extra or {}).get("token_ids", [])]
    assert ids == prompt[:3]
    assert (chunks[0].model_extra or {})["prompt_token_ids"] == prompt


def test_parameters_reach_the_verify_service(gateway: GatewayProcess, verify: FakeVerify) -> None:
    body = CHAT | {
        "temperature": 0.5, "top_p": 0.25, "top_k": 5, "min_p": 0.125, "repetition_penalty": 1.5, "seed": 2**63,
        "presence_penalty": -1, "frequency_penalty": 2, "logit_bias": {"7": -100}, "min_tokens": 2, "n": None,
        "max_completion_tokens": 5, "stop_token_ids": [300], "ignore_eos": True, "logprobs": True, "user": "red",
        "speculation": {"enabled": False, "proposer": "ngram", "max_nodes": 7, "max_depth": 3}, "store": False,
    }  # fmt: skip
    assert post(gateway, "chat/completions", body).status_code == 200
    submit = verify.seen.submits[0]
    sampling = submit.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.25, 5, 0.125)
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.5, -1, 2)
    assert (sampling.seed, sampling.max_tokens, sampling.min_tokens, sampling.logprobs) == (2**63, 5, 2, 0)
    assert (dict(sampling.logit_bias), list(sampling.stop_token_ids), sampling.ignore_eos) == ({7: -100}, [300], True)
    speculation = submit.speculation
    assert (speculation.enabled, speculation.proposer) == (False, "ngram")
    assert (speculation.max_nodes, speculation.max_depth) == (7, 3)
    assert submit.tenant == "red"


def test_content_parts_and_the_developer_role(gateway: GatewayProcess, verify: FakeVerify) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "developer", "content": parts}, {"role": "user", "content": "x"}]
    same = [{"role": "system", "content": "one\ntwo"}, {"role": "user", "content": "x"}]
    for entry in (messages, same):
        post(gateway, "chat/completions", {"model": "tiny", "messages": entry, "max_tokens": 1})
    first, second = verify.seen.submits
    assert list(first.prompt_token_ids) == list(second.prompt_token_ids)


def test_retry_after_says_how_long_the_queue_is(gateway: GatewayProcess, verify: FakeVerify) -> None:
    verify.reset(step_seconds=0.5)
    long, full = CHAT | {"n": 60, "max_tokens": 120, "ignore_eos": True}, CHAT | {"speculation": {"proposer": "busy"}}
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(post, gateway, "chat/completions", long)]
        verify.wait_for(lambda seen: len(seen.submits) == 60)
        early = post(gateway, "chat/completions", full)
        time.sleep(2.0)
        assert post(gateway, "chat/completions", CHAT | {"n": 6, "max_tokens": 1}).status_code == 200
        late = post(gateway, "chat/completions", full)
        with Client(gateway.grpc_address) as client, pytest.raises(ResourceExhaustedError) as caught:
            client.generate("x", speculation=SpeculationOptions(proposer="busy"))
        verify.script.step_seconds = 0.0
        assert all(answer.result().status_code == 200 for answer in running)
    assert (early.status_code, late.status_code) == (429, 429)
    assert 1 <= int(early.headers["retry-after"]) <= 60
    # 60 choices ahead at 6 in 2 s or a little more: 20 s and more.
    assert 20 <= int(late.headers["retry-after"]) <= 60
    assert 20 <= (caught.value.retry_after or 0) <= 60
    idle = post(gateway, "chat/completions", full)
    assert idle.headers["retry-after"] == "1"


def test_what_verify_refuses_has_its_own_status(gateway: GatewayProcess, verify: FakeVerify) -> None:
    verify.reset(error=ResourceExhaustedError("the queue is full"))
    for stream in (False, True):
        response = post(gateway, "chat/completions", CHAT | {"stream": stream})
        assert (response.status_code, response.json()["error"]["type"]) == (429, "rate_limit_error")
        assert response.headers["retry-after"] == "1"
    verify.reset(error=ResourceExhaustedError("the queue is full", retry_after=17.0))
    assert post(gateway, "chat/completions", CHAT).headers["retry-after"] == "17"


@pytest.mark.parametrize(
    ("path", "body", "field", "param"),
    [
        ("chat/completions", CHAT, "prompt_token_ids", "messages"),
        ("completions", {"model": "tiny", "prompt": "x"}, "prompt_token_ids", "prompt"),
        ("completions", {"model": "tiny", "prompt": "x"}, "max_tokens", "max_tokens"),
        ("completions", {"model": "tiny", "prompt": "x"}, "speculation.proposer", "speculation.proposer"),
    ],
)
def test_fields_that_verify_refuses_have_the_names_of_the_api(
    gateway: GatewayProcess, verify: FakeVerify, path: str, body: dict[str, Any], field: str, param: str
) -> None:
    verify.reset(error=InvalidArgumentError("too long", field=field))
    response = post(gateway, path, body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_what_the_template_refuses_names_the_messages(
    tokenizer_folder: Path, tmp_path: Path, verify: FakeVerify
) -> None:
    folder = shutil.copytree(tokenizer_folder, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(
        "{% for message in messages %}{% if message.role == 'system' and not loop.first %}"
        "{{ raise_exception('the system message must come first') }}{% endif %}{{ message.content }}{% endfor %}"
    )
    late = [{"role": "user", "content": "x"}, {"role": "system", "content": "y"}]
    with GatewayProcess(folder, verify.address) as gateway:
        response = post(gateway, "chat/completions", {"model": "tiny", "messages": late})
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "messages")
        assert "must come first" in error["message"]
        good = {"model": "tiny", "messages": late[::-1], "max_tokens": 1}
        assert post(gateway, "chat/completions", good).status_code == 200


def test_an_error_in_mid_stream_is_an_event_and_the_gateway_recovers(
    gateway: GatewayProcess, client: openai.OpenAI, verify: FakeVerify
) -> None:
    verify.reset(breaks=[4] * 4)
    stream = client.chat.completions.create(**CHAT, max_tokens=8, stream=True)
    texts: list[str | None] = []
    with pytest.raises(openai.APIError, match="went away"):
        texts.extend(chunk.choices[0].delta.content for chunk in stream)
    assert texts[:3] == ["", "H", "e"]
    verify.reset()
    gateway.wait_ready()
    assert post(gateway, "chat/completions", CHAT).status_code == 200


def test_a_client_that_goes_away_cancels_its_request(gateway: GatewayProcess, verify: FakeVerify) -> None:
    verify.reset(step_seconds=0.05)
    for stream in (True, False):
        body = json.dumps(CHAT | {"stream": stream, "ignore_eos": True, "n": 2})
        host, port = gateway.http_url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(
                f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\n\r\n{body}".encode()
            )
            verify.wait_for(lambda seen: len(seen.submits) == 2)
        verify.wait_for(lambda seen: len(seen.cancels) == 2)
        verify.reset(step_seconds=0.05)


def test_probes_and_metrics(gateway: GatewayProcess, client: openai.OpenAI) -> None:
    client.chat.completions.create(**CHAT)
    assert httpx.get(f"{gateway.http_url}/health", timeout=60).json()["process_id"] == gateway.process.pid
    ready = httpx.get(f"{gateway.http_url}/ready", timeout=60).json()
    assert (ready["status"], ready["missing_proposers"]) == ("ready", [])
    metrics = httpx.get(f"{gateway.http_url}/metrics", timeout=60).text
    assert "slipstream_gateway_verify_ready 1.0" in metrics
    assert 'slipstream_gateway_requests_total{api="http",outcome="200"}' in metrics


def test_readiness_names_proposers_that_are_missing_now(gateway: GatewayProcess, verify: FakeVerify) -> None:
    verify.missing = {"eagle3": "hidden_size 64 differs from the target's, 32", "suffix": ""}
    answer = httpx.get(f"{gateway.http_url}/ready", timeout=60)
    verify.missing = {}
    assert (answer.status_code, answer.json()["status"]) == (200, "ready")
    assert answer.json()["missing_proposers"] == [
        {
            "proposer": "eagle3",
            "verify_service": verify.address,
            "reason": "hidden_size 64 differs from the target's, 32",
        },
        {
            "proposer": "suffix",
            "verify_service": verify.address,
            "reason": "no draft service that offers it is attached; until one is, its requests are decoded plainly",
        },
    ]
