"""Traces of verify steps as the OpenAI API writes them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter

from gateway.openai.trace import trace_body
from gateway.openai.types import StepTrace as StepTraceBody
from slipstream.generation_types import SpeculationStep, StepTrace
from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess
from support.openai_api import CHAT

TREE = StepTrace(
    7, (5, None, 6), (-1, 0, -1), (), ("suffix", "suffix", "ngram"), (0,), 9, 0.5, ("a", "", "b"), ("a", "c")
)
SCHEMA = Draft202012Validator(TypeAdapter(StepTraceBody).json_schema())


def test_nodes_and_tokens_say_whose_they_are() -> None:
    body = trace_body(SpeculationStep(3, 1, "hybrid", trace=TREE), (5, 8))
    SCHEMA.validate(body)
    assert body["tokens"] == [
        {"token_id": 5, "text": "a", "origin": "draft", "proposer": "suffix"},
        {"token_id": 8, "text": "c", "origin": "bonus", "proposer": None},
    ]
    assert body["tree"] is not None
    assert body["tree"]["token_ids"] == [5, None, 6] and body["tree"]["log_probs"] is None
    assert (body["position"], body["rows"], body["pass_rows"], body["pass_seconds"]) == (7, 4, 9, 0.5)


def test_a_plain_step_has_no_tree() -> None:
    body = trace_body(SpeculationStep(0, 0, "", trace=StepTrace(0, texts=("a",))), (5,))
    SCHEMA.validate(body)
    assert body["tree"] is None and body["tokens"][0]["origin"] == "target"


@pytest.mark.parametrize("breaks", [[], [3, 6]], ids=["in one piece", "resumed twice"])
def test_the_trace_goes_on_when_a_stream_is_resumed(
    gateway: GatewayProcess, verify: FakeVerify, breaks: list[int]
) -> None:
    verify.reset(tokens_per_step=1, breaks=[*breaks])
    steps = traced_steps(gateway, max_tokens=11)
    assert [step["position"] for step in steps] == list(range(11))
    assert len(verify.seen.submits) == 1 + len(breaks)
    assert all(submit.speculation.trace for submit in verify.seen.submits)


def traced_steps(gateway: GatewayProcess, **fields: Any) -> list[Any]:
    """Traces of a streamed answer, each as the document describes it."""
    body = {**CHAT, "stream": True, "speculation": {"trace": True}, **fields}
    with gateway.http_client() as client:
        text = client.post("/v1/chat/completions", json=body).text
    chunks = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]
    steps = [choice["trace"] for chunk in chunks for choice in chunk["choices"] if "trace" in choice]
    for step in steps:
        SCHEMA.validate(step)
    return steps
