"""A request's id goes from its client to the drafter, and stands in the log of every service."""

from __future__ import annotations

import json

import httpx
import pytest

from support.ask import wait_until
from support.cluster import Cluster

JSON = ("--log-format", "json", "--log-level", "debug")
SECRET = "zanzibar"


@pytest.fixture(scope="module")
def cluster(tiny_model):
    with Cluster(
        tiny_model, draft=("ngram",), verify_args=("--num-pages", "256", *JSON), draft_args=JSON, gateway_args=JSON
    ) as cluster:
        yield cluster


def lines(cluster: Cluster, service: str, request_id: str) -> list[dict]:
    """What a service has logged of a request; all that it writes is JSON."""
    told = [json.loads(line) for line in cluster.logs(service).splitlines() if line]
    assert {line["service"] for line in told} == {service}
    return [line for line in told if line.get("request_id") == request_id]


def test_every_service_names_the_request_and_none_its_words(cluster):
    body = {"model": cluster.layout.model.name, "prompt": SECRET, "max_tokens": 8}
    reply = httpx.post(
        f"{cluster.http_url}/v1/completions", json=body, headers={"x-request-id": "all-through-1"}, timeout=60
    )
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-request-id"] == "all-through-1"
    for service in ("gateway", "verify", "draft"):
        wait_until(lambda service=service: lines(cluster, service, "all-through-1"), lambda s=service: cluster.logs(s))
        assert SECRET not in cluster.logs(service)
    (access,) = [line for line in lines(cluster, "gateway", "all-through-1") if line["logger"] == "gateway.access_log"]
    assert access["completion_tokens"] == 8
    opened, *_ = lines(cluster, "draft", "all-through-1")
    assert opened["message"].endswith("ngram drafts for slot 0")
    (submitted,) = lines(cluster, "verify", "all-through-1")
    assert submitted["prompt_tokens"] == access["prompt_tokens"]
