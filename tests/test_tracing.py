"""Spans of real services at a real collector: one of the gateway a request, one of each verify service that had it."""

from __future__ import annotations

import json
from uuid import uuid4

import httpx
import pytest

from slipstream.tracing import names
from support.cluster import Cluster
from support.otlp_receiver import OtlpReceiver

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SECRET = "zanzibar"
SERVER = 2
BODY = {"prompt": SECRET, "max_tokens": 12, "ignore_eos": True, "seed": 3}
HEADERS = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "a=1"}


@pytest.fixture(scope="module")
def receiver():
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def cluster(tiny_model, receiver):
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "50"}
    with Cluster(
        tiny_model,
        draft=("ngram",),
        verify_args=("--num-pages", "512"),
        gateway_args=("--resume-seconds", "200"),
        env=env,
    ) as cluster:
        yield cluster


def complete(cluster: Cluster, id_: str, **changes) -> dict:
    body = BODY | {"model": cluster.layout.model.name} | changes
    url, headers = f"{cluster.http_url}/v1/completions", HEADERS | {"x-request-id": id_}
    reply = httpx.post(url, json=body, headers=headers, timeout=240)
    assert reply.status_code == 200, reply.text
    return reply.json()


def spans(receiver: OtlpReceiver, service: str, id_: str, count: int = 1):
    return receiver.wait_for(
        lambda span: span.service == service and span.attributes[names.REQUEST_ID] == id_, count, seconds=120
    )


@pytest.fixture
def id_() -> str:
    """A request's own, each time that a test is tried: spans of all of them come to one receiver."""
    return f"traced-{uuid4().hex}"


def test_every_choice_is_a_child_of_its_request(cluster, receiver, id_):
    usage = complete(cluster, id_, n=2)["usage"]
    (parent,) = spans(receiver, "slipstream-gateway", id_)
    children = spans(receiver, "slipstream-verify", id_, 2)
    assert (parent.trace_id, parent.parent_id) == (TRACE, SPAN)
    for child in children:
        assert (child.name, child.kind, child.failed) == ("verify", SERVER, False)
        assert (child.trace_id, child.parent_id, child.trace_state) == (TRACE, parent.span_id, "a=1")
        assert child.span_id != parent.span_id
        assert parent.begun < child.begun < child.ended
        assert child.event_names() == ["started", "first_token"]
        assert child.begun <= child.events[0][1] < child.events[1][1] <= child.ended
    assert sorted(child.attributes.pop(names.CHOICE) for child in children) == [0, 1]
    told = [child.attributes for child in children]
    assert sum(each[names.OUTPUT_TOKENS] for each in told) == usage["completion_tokens"] == 24
    assert sum(each[names.DRAFTED_TOKENS] for each in told) == parent.attributes[names.DRAFTED_TOKENS]
    assert {key for each in told for key in each} == {
        "slipstream.request_id", "slipstream.prompt_tokens", "slipstream.prior_output_tokens",
        "slipstream.cached_tokens", "slipstream.output_tokens", "slipstream.verify_steps",
        "slipstream.speculation.drafted_tokens", "slipstream.speculation.accepted_tokens", "slipstream.finish_reason",
    }  # fmt: skip
    assert SECRET not in repr(receiver.spans)


def disturbed(cluster: Cluster, id_: str) -> str:
    """Text of a stream whose verify service is killed once its first tokens were read."""
    body = BODY | {"model": cluster.layout.model.name, "max_tokens": 400, "stream": True}
    url, text, alive = f"{cluster.http_url}/v1/completions", "", True
    with httpx.stream("POST", url, json=body, headers=HEADERS | {"x-request-id": id_}, timeout=240) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
                if alive:
                    cluster.kill("verify")
                    cluster.start("verify")
                    alive = False
    return text


def test_a_request_stays_one_when_its_verify_service_dies(cluster, receiver, id_):
    (undisturbed,) = complete(cluster, f"{id_}-calm", max_tokens=400)["choices"]
    for attempt in range(5):  # a stream may be over before it is known here to have begun
        asked = f"{id_}-{attempt}"
        assert disturbed(cluster, asked) == undisturbed["text"]
        (parent,) = spans(receiver, "slipstream-gateway", asked)
        resumes = [(at, told) for name, at, told in parent.events if name == "resumed"]
        assert parent.attributes[names.RESUMES] == len(resumes)
        if resumes:
            break
    at, told = resumes[-1]  # a crowded machine may lose a connection besides
    at, told = resumes[-1]

    def is_the_last(span) -> bool:
        return (span.service, span.attributes[names.REQUEST_ID]) == ("slipstream-verify", asked) and span.ended > at

    (child,) = receiver.wait_for(is_the_last, seconds=120)
    assert (child.trace_id, child.parent_id) == (TRACE, parent.span_id)
    assert 0 < child.attributes[names.PRIOR_TOKENS] == told[names.RESUMED_POSITION] < 400
    assert told[names.RESUMED_FROM] == told[names.RESUMED_TO] == parent.attributes[names.REPLICA]
    assert parent.begun < at < child.ended < parent.ended
