"""Logprobs of prompts over HTTP and gRPC, as lm-eval-harness and users of vLLM ask for them."""

from __future__ import annotations

import json
import time
from array import array
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import openai
import orjson
import pytest

from gateway.core.limits import check_prompt_logprobs
from gateway.core.prompt_logprobs import PromptLogprobs
from gateway.core.request import ChoiceRequest, Sampling
from gateway.openai.prompt_logprobs import PromptWriter, Splicer, with_prompt
from gateway.tokens.tokenizer import Tokenizer
from slipstream import Client
from slipstream.completion import PositionLogprobs
from slipstream.rpc.errors import InvalidArgumentError
from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess
from support.openai_api import CHAT, post

LM_EVAL = {"model": "tiny", "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
"""What lm-eval-harness's local-completions sends beside `prompt`, where it asks for log-likelihoods."""


def complete(gateway: GatewayProcess, **body: Any) -> dict[str, Any]:
    response = post(gateway, "completions", LM_EVAL | body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_log_likelihoods_of_a_batch_of_token_ids(gateway: GatewayProcess, verify: FakeVerify) -> None:
    """Read as the harness reads them: of each continuation, without the token that was generated beside."""
    prompts = [[40, 41, 42, 43, 44], [50, 51, 52]]
    choices = complete(gateway, prompt=prompts)["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    for choice, prompt, context in zip(choices, prompts, (2, 1), strict=True):
        logprobs = choice["logprobs"]
        assert {len(each) for each in logprobs.values()} == {len(prompt) + 1}
        assert logprobs["token_logprobs"][context:-1] == [-place / 4 for place in range(context, len(prompt))]
        likely = [max(entry.values()) for entry in logprobs["top_logprobs"][context:-1]]
        assert likely == [-place / 8 for place in range(context, len(prompt))]
        assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
    sampling = [submit.sampling for submit in verify.seen.submits]
    assert [(each.prompt_logprobs, each.logprobs, each.max_tokens, each.seed) for each in sampling] == [
        (1, 1, 1, 1234)
    ] * 2


@pytest.mark.parametrize("max_tokens", [0, 2])
def test_the_echo_and_the_text_are_one(gateway: GatewayProcess, client: openai.OpenAI, max_tokens: int) -> None:
    """Characters of several tokens count once in offsets; a chosen token is among the likely ones, or beside them."""
    request = {"model": "tiny", "prompt": "He é.", "echo": True, "logprobs": 2, "max_tokens": max_tokens}
    choice = client.completions.create(**request).choices[0]
    assert choice.text == "He é." + "He"[:max_tokens]
    assert choice.finish_reason == "length"
    logprobs = choice.logprobs
    assert logprobs is not None
    prompt = ["H", "e", " ", "bytes:\\xc3", "bytes:\\xa9", "."]
    assert logprobs.tokens == prompt + ["H", "e"][:max_tokens]
    assert logprobs.text_offset == [0, 1, 2, 3, 3, 4, 5, 6][: 6 + max_tokens]
    assert logprobs.token_logprobs == [None, *(-place / 4 for place in range(1, 6)), *[-0.5] * max_tokens]
    tops = logprobs.top_logprobs
    assert tops is not None
    assert tops[:2] == [None, {"%": -0.125, "&": -1.125, "e": -0.25}]
    assert tops[6:] == [{"%": -1.0, "&": -2.0, token: -0.5} for token in ("H", "e")][:max_tokens]
    streamed = list(client.completions.create(**request, stream=True))
    assert "".join(chunk.choices[0].text for chunk in streamed) == choice.text
    parts = [chunk.choices[0].logprobs for chunk in streamed]
    for name, whole in logprobs.model_dump().items():
        assert list(chain.from_iterable(getattr(part, name) for part in parts if part)) == whole
    assert streamed[-1].choices[0].finish_reason == "length"


def test_without_likely_tokens_and_of_one_token(gateway: GatewayProcess) -> None:
    (choice,) = complete(gateway, prompt=[40, 41], logprobs=0, max_tokens=0)["choices"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.25]
    assert choice["logprobs"]["top_logprobs"] is None
    (choice,) = complete(gateway, prompt=[40], max_tokens=0, prompt_logprobs=2)["choices"]
    assert choice["logprobs"] == {
        "tokens": [choice["text"]], "token_logprobs": [None], "top_logprobs": [None], "text_offset": [0]
    }  # fmt: skip
    assert choice["prompt_logprobs"] == [None]
    with Client(gateway.grpc_address) as client:
        assert client.generate(token_ids=[40], max_tokens=0, prompt_logprobs=2).prompt_logprobs == (None,)


def test_an_echo_alone(gateway: GatewayProcess) -> None:
    answer = complete(gateway, prompt="Hello", logprobs=None, max_tokens=0)
    assert (answer["choices"][0]["text"], answer["choices"][0]["logprobs"]) == ("Hello", None)
    assert answer["usage"]["completion_tokens"] == 0
    streamed = post(
        gateway, "completions", LM_EVAL | {"prompt": "H", "logprobs": None, "max_tokens": 0, "stream": True}
    )
    events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    assert [event["choices"][0]["text"] for event in events] == ["H", ""]


def test_prompt_logprobs_as_vllm_has_them(gateway: GatewayProcess, verify: FakeVerify) -> None:
    body = {"prompt": [[40, 12, 44], [11]], "echo": False, "logprobs": None, "prompt_logprobs": 2, "max_tokens": 1}
    first, second = complete(gateway, **body)["choices"]
    names = {key: json.loads(json.dumps(chr(33 + key - 6))) for key in (10, 11, 12, 44)}
    assert first["prompt_logprobs"] == [
        None,
        {
            "12": {"logprob": -0.25, "rank": 2, "decoded_token": names[12]},
            "10": {"logprob": -0.125, "rank": 1, "decoded_token": names[10]},
            "11": {"logprob": -1.125, "rank": 2, "decoded_token": names[11]},
        },
        {
            "44": {"logprob": -0.5, "rank": 3, "decoded_token": names[44]},
            "10": {"logprob": -0.25, "rank": 1, "decoded_token": names[10]},
            "11": {"logprob": -1.25, "rank": 2, "decoded_token": names[11]},
        },
    ]
    assert second["prompt_logprobs"] == [None]
    assert first["logprobs"] is None
    chat = post(gateway, "chat/completions", CHAT | {"prompt_logprobs": 0, "max_tokens": 0, "n": 2}).json()
    prompt = list(verify.seen.submits[-1].prompt_token_ids)
    assert [next(iter(entry)) for entry in chat["prompt_logprobs"][1:]] == [str(token) for token in prompt[1:]]
    assert [choice["message"]["content"] for choice in chat["choices"]] == ["", ""]


def test_both_fields_have_as_many_as_each_asks_for(gateway: GatewayProcess, verify: FakeVerify) -> None:
    (choice,) = complete(gateway, prompt=[40, 41], logprobs=1, prompt_logprobs=3, max_tokens=0)["choices"]
    assert verify.seen.submits[0].sampling.prompt_logprobs == 3
    assert len(choice["logprobs"]["top_logprobs"][1]) == 2
    assert len(choice["prompt_logprobs"][1]) == 4


@pytest.mark.parametrize("breaks", [[0], [1], [2, 2], [1, 2]])
@pytest.mark.parametrize("max_tokens", [0, 3])
def test_a_lost_service_changes_and_repeats_none(
    gateway: GatewayProcess, verify: FakeVerify, breaks: list[int], max_tokens: int
) -> None:
    request: dict[str, Any] = {"token_ids": [40, 41, 42, 43, 44, 45], "prompt_logprobs": 1, "max_tokens": max_tokens}
    with Client(gateway.grpc_address) as client:
        undisturbed = client.generate(**request, seed=1)
        verify.reset(breaks_in_prompt=list(breaks), breaks=[1] if max_tokens else [])
        answer = client.generate(**request, seed=1)
    assert answer.prompt_logprobs == undisturbed.prompt_logprobs
    assert answer.token_ids == undisturbed.token_ids
    assert [entry and entry.chosen.logprob for entry in answer.prompt_logprobs] == [
        None, *(-place / 4 for place in range(1, 6))
    ]  # fmt: skip
    assert len(verify.seen.submits) == 1 + len(breaks) + bool(max_tokens)
    if max_tokens:  # with a token of its own none is left to be told
        assert not verify.seen.submits[-1].sampling.HasField("prompt_logprobs")


def test_the_typed_client(gateway: GatewayProcess) -> None:
    with Client(gateway.grpc_address) as client:
        events = list(client.stream(token_ids=[40, 41, 42], prompt_logprobs=1, max_tokens=2, seed=9))
    told = [entry for event in events for entry in event.prompt_logprobs]
    assert told[0] is None
    assert [(entry.chosen.token_id, entry.chosen.rank) for entry in told[1:] if entry] == [(41, 2), (42, 3)]
    assert [[each.token_id for each in entry.top] for entry in told if isinstance(entry, PositionLogprobs)] == [
        [10]
    ] * 2
    assert events[0].seed == 9
    lasting = [bool(event.token_ids) for event in events]
    assert lasting == sorted(lasting)
    assert not any(event.prompt_logprobs for event in events if event.token_ids)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"max_tokens": 0, "echo": False}, "max_tokens", "greater than or equal to 1 unless"),
        ({"prompt_logprobs": 21}, "prompt_logprobs", "less than or equal to 20"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "greater than or equal to 0"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "not available when stream is true"),
        ({"prompt": [[1] * 511], "max_tokens": 2}, "max_tokens", "512"),
        ({"max_tokens": 0, "min_tokens": 1}, "min_tokens", "at most max_tokens"),
    ],
)
def test_what_is_refused(gateway: GatewayProcess, body: dict[str, Any], param: str, words: str) -> None:
    response = post(gateway, "completions", LM_EVAL | {"prompt": "x"} | body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text
    assert words in response.json()["error"]["message"]


def test_the_answers_size_is_bounded(tokenizer_folder: Path) -> None:
    order = ChoiceRequest(array("I", [1]) * 131_072, Sampling(prompt_logprobs=20, max_tokens=0))
    check_prompt_logprobs([order])
    with pytest.raises(InvalidArgumentError, match=r"at most 4194304 .* would have 5505024") as refused:
        check_prompt_logprobs([order, order], prefix="sampling.")
    assert refused.value.field == "sampling.prompt_logprobs"


def test_what_chat_and_grpc_refuse(gateway: GatewayProcess) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        response = post(gateway, "chat/completions", CHAT | {name: 0})
        assert (response.status_code, response.json()["error"]["param"]) == (400, name)
    with Client(gateway.grpc_address) as client:
        for options, field in (({"max_tokens": 0}, "max_tokens"), ({"prompt_logprobs": 21}, "prompt_logprobs")):
            with pytest.raises(InvalidArgumentError) as refused:
                client.generate("x", **options)  # type: ignore[arg-type]  # one of them each
            assert refused.value.field == f"sampling.{field}"


def test_a_large_answer_is_sent_in_parts_and_holds_the_loop_of_nobody(
    gateway: GatewayProcess, verify: FakeVerify
) -> None:
    """128 choices for prompts of 400 tokens, with 20 alternatives each: a million entries."""
    verify.reset(scores_per_output=48)
    before = hold(gateway)
    body = LM_EVAL | {"prompt": [[40 + place % 300 for place in range(400)]] * 8, "logprobs": 20, "max_tokens": 0}
    body["n"] = 16
    with httpx.stream("POST", f"{gateway.http_url}/v1/completions", json=body, timeout=120) as response:
        assert response.status_code == 200
        assert response.headers["transfer-encoding"] == "chunked"
        answer = orjson.loads(response.read())
    assert len(answer["choices"]) == 128
    for choice in answer["choices"]:
        assert choice["logprobs"]["token_logprobs"] == [None, *(-place / 4 for place in range(1, 400))]
        assert len(choice["logprobs"]["top_logprobs"][399]) in (20, 21)
    assert hold(gateway) <= max(before, 0.05)


def hold(gateway: GatewayProcess) -> float:
    """The longest time for which the gateway's loop served nobody else, in seconds of processor time."""
    text = httpx.get(f"{gateway.http_url}/metrics", timeout=60).text
    return float(
        next(line for line in text.splitlines() if "longest_hold_seconds " in line and line[0] != "#").split()[1]
    )


def test_pieces_are_made_quickly(tokenizer_folder: Path) -> None:
    """A prompt of 16,384 tokens with 20 alternatives, in both shapes; the slowest piece takes milliseconds."""
    count, top = 16_384, 20
    prompt = array("I", (40 + place % 400 for place in range(count)))
    scores = PromptLogprobs(
        1,
        array("f", [-1.5]) * (count - 1),
        array("I", [3]) * (count - 1),
        top,
        array("I", range(40, 40 + top)) * (count - 1),
        array("f", [-0.1]) * (top * (count - 1)),
    )
    writer, splicer = PromptWriter(prompt, scores, Tokenizer(tokenizer_folder)), Splicer()
    empty = {"tokens": [], "token_logprobs": [], "top_logprobs": None, "text_offset": []}
    document = {"echo": with_prompt(empty, writer, top, splicer), "entries": splicer.list(lambda: writer.entries(top))}
    pieces, times = [], []
    stream = splicer.pieces(document)
    while True:
        begun = time.thread_time()
        piece = next(stream, None)
        times.append(time.thread_time() - begun)
        if piece is None:
            break
        pieces.append(piece)
    written = orjson.loads(b"".join(pieces))
    assert {name: len(each) for name, each in written["echo"].items()} == dict.fromkeys(empty, count)
    assert len(written["entries"]) == count
    assert sorted(times)[-3] < 0.025
