"""Answers whose verify service goes away at one moment or another are those of an undisturbed run."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gateway.core.request import ChoiceRequest, Sampling, StepOutput
from gateway.replicas.replica import Replica
from gateway.replicas.resumable_stream import ResumableStream
from gateway.replicas.verify_client import VerifyClient
from slipstream import Client, Completion
from slipstream.generation_types import Timings
from slipstream.rpc.errors import UnavailableError
from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess

TOKENS = 24
MOMENTS = {
    "before the first output": [0],
    "after it": [1],
    "in the middle": [9],
    "before the last token": [TOKENS - 1],
    "twice at one token": [9, 9],
    "at two tokens": [0, 17],
}


def generate(gateway: GatewayProcess, prompt: str, **options: Any) -> Completion:
    with Client(gateway.grpc_address) as client:
        return client.generate(prompt, timeout=60, **options)


@pytest.mark.parametrize("breaks", MOMENTS.values(), ids=MOMENTS)
def test_a_call_goes_on_as_if_nothing_had_been(gateway: GatewayProcess, verify: FakeVerify, breaks: list[int]) -> None:
    request: dict[str, Any] = {
        "max_tokens": TOKENS, "min_tokens": 2, "ignore_eos": True, "logprobs": 2, "seed": 5, "choice_index": 3,
        "presence_penalty": 0.5, "tenant": "red",
    }  # fmt: skip
    undisturbed = generate(gateway, "Hello é 東", **request)
    verify.reset(breaks=list(breaks))
    answer = generate(gateway, "Hello é 東", **request)
    assert (answer.text, answer.token_ids) == (undisturbed.text, undisturbed.token_ids)
    assert (answer.logprobs, answer.seed) == (undisturbed.logprobs, undisturbed.seed)
    assert (answer.usage, answer.finish_reason) == (undisturbed.usage, undisturbed.finish_reason)
    first, *others = verify.seen.submits
    assert [len(other.output_token_ids) for other in others] == breaks
    for other in others:
        assert tuple(other.output_token_ids) == answer.token_ids[: len(other.output_token_ids)]
        for message in (first, other):
            message.ClearField("output_token_ids")
            message.request_id = 0
        assert other == first


def test_a_seed_that_the_gateway_drew_is_kept(gateway: GatewayProcess, verify: FakeVerify) -> None:
    verify.reset(breaks=[0, 2])
    answer = generate(gateway, "abc", max_tokens=4)
    assert [submit.sampling.seed for submit in verify.seen.submits] == [answer.seed] * 3


@pytest.mark.parametrize("cut", range(8))
def test_a_stop_string_may_be_torn(gateway: GatewayProcess, verify: FakeVerify, cut: int) -> None:
    verify.reset(breaks=[cut])
    answer = generate(gateway, "abc", stop="cabca", max_tokens=20)
    assert (answer.text, answer.stop_string, answer.usage.completion_tokens) == ("ab", "cabca", 7)
    verify.wait_for(lambda seen: len(seen.submits) == (2 if cut < 7 else 1))


@pytest.mark.parametrize("cut", [1, 2])
def test_a_character_may_be_torn(gateway: GatewayProcess, verify: FakeVerify, cut: int) -> None:
    verify.reset(breaks=[cut])
    answer = generate(gateway, "€", max_tokens=3)
    assert (answer.text, len(verify.seen.submits)) == ("€", 2)


@pytest.mark.parametrize("stream", [False, True])
def test_every_choice_of_an_http_answer_goes_on(gateway: GatewayProcess, verify: FakeVerify, stream: bool) -> None:
    body = {"model": "tiny", "prompt": "Hello there", "max_tokens": TOKENS, "n": 3, "logprobs": 1, "seed": 1}
    body |= {"stream": stream, "return_token_ids": True}
    undisturbed = complete(gateway, body)
    verify.reset(breaks=[5, 5, 11], step_seconds=0.002)
    assert complete(gateway, body) == undisturbed
    assert {submit.choice_index for submit in verify.seen.submits if submit.output_token_ids} == {0, 1, 2}


def complete(gateway: GatewayProcess, body: dict[str, Any]) -> list[Any]:
    """What an answer says of each choice, in order, and its usage; each event of a stream, by choice."""
    reply = httpx.post(f"{gateway.http_url}/v1/completions", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    if not body["stream"]:
        return [reply.json()["choices"], reply.json()["usage"]]
    *events, done = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
    assert done == "[DONE]"
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return sorted(choices, key=lambda choice: int(choice["index"]))


def test_times_count_from_the_first_submission(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("gateway.replicas.resumable_stream.time.monotonic", lambda: now)

    def finish(resumable: ResumableStream) -> Timings | None:
        last = StepOutput([7], timings=Timings(0.25, 0.5, 1.0))
        resumable.receive(last)
        return last.timings

    replica = Replica("127.0.0.1:1", VerifyClient((), timeout=1.0, resume_seconds=0.0), timeout=1.0)
    started, waiting, undisturbed = (
        ResumableStream(ChoiceRequest([1], Sampling(seed=0)), lambda output: None) for _ in range(3)
    )
    for resumable in (started, waiting, undisturbed):
        resumable.send(replica, 1)
    now = 102.0
    started.receive(StepOutput([6]))
    now = 110.0
    for resumable in (started, waiting):
        resumable.on_lost(UnavailableError("gone"))
    now = 120.0
    for resumable in (started, waiting):
        resumable.send(replica, 2)
    assert finish(started) == Timings(0.0, 2.0, 21.0)
    assert finish(waiting) == Timings(20.25, 20.5, 21.0)
    assert finish(undisturbed) == Timings(0.25, 0.5, 1.0)


def test_a_pause_lasts_from_the_first_loss_to_the_next_output(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("gateway.replicas.resumable_stream.time.monotonic", lambda: now)
    resumable = ResumableStream(ChoiceRequest([1], Sampling(seed=0)), lambda output: None)
    pauses = []
    for moment in (110.0, 120.0, 130.0):
        now = moment
        resumable.on_lost(UnavailableError("gone"))
        pauses.append(resumable.paused_at)
        if moment == 120.0:
            resumable.resume()
    assert (pauses, resumable.losses) == ([110.0, 110.0, 130.0], 3)
