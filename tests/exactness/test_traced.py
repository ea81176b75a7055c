"""Traces of verify steps through three real processes: they say what came of each step, and change no token."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from slipstream import Client, Event, SpeculationOptions
from slipstream.completion import collect
from slipstream.generation_types import TokenOrigin
from slipstream.rpc.errors import ResourceExhaustedError
from support.cluster import Cluster

QUESTIONS = ("Say a b c a b c a b c and again.", "Name three rivers of Europe.")
PROPOSERS = ("ngram", "draft-model", "suffix", "hybrid", "eagle3", "")
TEMPERATURES = (0.0, 0.9)
LIMIT = 2


@pytest.fixture(scope="module")
def cluster(demo_model: Path, demo_draft_model: Path, demo_head: Path) -> Iterator[Cluster]:
    draft = (
        "ngram",
        f"draft-model:{demo_draft_model}",
        "suffix",
        f"eagle3:{demo_head}:target={demo_model}",
        "hybrid:suffix+ngram",
    )
    patient = ("--draft-deadline-ms", "5000")
    limit = ("--max-traced-choices", str(LIMIT))
    with Cluster(demo_model, draft=draft, verify_args=patient, gateway_args=limit) as started:
        yield started


def events_of(
    client: Client, question: str, temperature: float, proposer: str, *, trace: bool, **options: Any
) -> list[Event]:
    """Those of an answer with a seed, 40 tokens at most."""
    wish = SpeculationOptions(enabled=bool(proposer), proposer=proposer, trace=trace)
    given: Any = {"temperature": temperature, "seed": 5, "max_tokens": 40, "speculation": wish} | options
    with client.stream(messages=[{"role": "user", "content": question}], **given) as stream:
        return list(stream)


def check(events: Sequence[Event]) -> None:
    """Each step's trace agrees with its tokens, and all of them with the text."""
    position = 0
    for event in events:
        assert event.step is not None and event.step.trace is not None
        step, trace = event.step, event.step.trace
        assert trace.position == position
        position += len(event.token_ids)
        assert len(trace.token_ids) == len(trace.parents) == len(trace.node_texts) == step.drafted <= 63
        assert len(trace.log_probs) in (0, step.drafted) and len(trace.sources) in (0, step.drafted)
        assert len(trace.accepted) == step.accepted and len(trace.texts) == len(event.token_ids)
        at = -1
        for node, token in zip(trace.accepted, event.token_ids, strict=False):
            assert (trace.parents[node], trace.token_ids[node]) == (at, token)
            at = node
        assert trace.pass_rows >= 1 + step.drafted
        assert trace.pass_seconds > 0
        origins = [step.origin(index) for index in range(len(event.token_ids))]
        assert origins.count(TokenOrigin.DRAFT) == step.accepted
        assert set(origins[step.accepted :]) <= {TokenOrigin.BONUS if step.drafted else TokenOrigin.TARGET}
    texts = "".join(text for event in events if event.step and event.step.trace for text in event.step.trace.texts)
    assert texts == "".join(event.text for event in events)


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_a_trace_changes_no_token_and_agrees_with_them(cluster: Cluster, proposer: str) -> None:
    drafted = 0
    with Client(cluster.gateway_grpc) as client:
        for temperature in TEMPERATURES:
            for question in QUESTIONS:
                plain = collect(events_of(client, question, temperature, "", trace=False))
                untraced = collect(events_of(client, question, temperature, proposer, trace=False))
                events = events_of(client, question, temperature, proposer, trace=True)
                traced = collect(events)
                assert traced.token_ids == untraced.token_ids == plain.token_ids
                assert (traced.text, traced.finish_reason) == (plain.text, plain.finish_reason)
                assert all(step.trace is None for step in untraced.steps)
                check(events)
                drafted += traced.usage.drafted_tokens
    assert (drafted > 0) == bool(proposer)


def test_tokens_that_a_proposer_remembers_of_others_are_withheld(cluster: Cluster) -> None:
    with Client(cluster.gateway_grpc) as client:
        asked = [
            events_of(client, question, 1.0, name, trace=True, seed=seed, ignore_eos=True)
            for name in ("suffix", "hybrid", "ngram")
            for question in QUESTIONS
            for seed in range(3)
        ]
    rejected: defaultdict[str, list[tuple[int | None, str]]] = defaultdict(list)
    for events in asked:
        for step in (event.step for event in events if event.step):
            assert step.trace is not None
            for node, token in enumerate(step.trace.token_ids):
                if node not in step.trace.accepted:
                    rejected[step.proposer_of(node)].append((token, step.trace.node_texts[node]))
                else:
                    assert token is not None
    assert rejected["suffix"] and set(rejected["suffix"]) == {(None, "")}
    assert all(token is not None for token, _ in rejected["ngram"])


def traced_chunks(cluster: Cluster, **fields: object) -> list[dict[str, Any]]:
    body = {"model": "slipstream-demo", "messages": [{"role": "user", "content": QUESTIONS[0]}], "stream": True}
    body |= {
        "max_tokens": 24,
        "temperature": 0,
        "ignore_eos": True,
        "speculation": {"trace": True, "proposer": "ngram"},
    }
    answer = httpx.post(f"{cluster.http_url}/v1/chat/completions", json=body | fields, timeout=60)
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line)["choices"][0] for line in lines]


def test_http_chunks_have_the_trace_of_their_step(cluster: Cluster) -> None:
    choices = [choice for choice in traced_chunks(cluster) if "trace" in choice]
    text, position = "", 0
    for choice in choices:
        trace = choice["trace"]
        assert trace["position"] == position
        position += len(trace["tokens"])
        text += "".join(token["text"] for token in trace["tokens"])
        tree = trace["tree"]
        nodes = 0 if tree is None else len(tree["token_ids"])
        assert trace["rows"] == 1 + nodes <= trace["pass_rows"]
        for token in trace["tokens"]:
            assert token["proposer"] == ("ngram" if token["origin"] == "draft" else None)
        if tree is not None:
            assert {len(tree[name]) for name in ("texts", "parents", "proposers")} == {nodes}
            assert [tree["token_ids"][node] for node in tree["accepted"]] == [
                token["token_id"] for token in trace["tokens"] if token["origin"] == "draft"
            ]
    assert text == "".join(choice["delta"]["content"] for choice in choices)
    assert position == 24
    assert any(choice["trace"]["tree"] for choice in choices)


def test_traces_are_limited_and_refused_by_name(cluster: Cluster) -> None:
    wish = SpeculationOptions(trace=True)
    body = {"model": "slipstream-demo", "prompt": "a", "speculation": {"trace": True}}
    answer = httpx.post(f"{cluster.http_url}/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "speculation.trace")
    answer = httpx.post(f"{cluster.http_url}/v1/completions", json=body | {"stream": True, "n": LIMIT + 1})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "speculation.trace")
    with Client(cluster.gateway_grpc) as client:
        streams = [client.stream("a", speculation=wish, ignore_eos=True) for _ in range(LIMIT)]
        for stream in streams:
            next(stream)
        with pytest.raises(ResourceExhaustedError, match=r"speculation\.trace"):
            client.generate("a", speculation=wish, max_tokens=2)
        answer = httpx.post(f"{cluster.http_url}/v1/completions", json=body | {"stream": True})
        assert (answer.status_code, answer.json()["error"]["param"]) == (429, "speculation.trace")
        client.generate("a", max_tokens=2)
        for stream in streams:
            stream.close()
        untraced = [step for step in client.generate("a", max_tokens=2).steps if step.trace is not None]
        assert not untraced
