"""A request's id goes from its client to the drafter, and stands in the log of every service, all of which is JSON."""

from __future__ import annotations

import json

import httpx
import pytest

from support.ask import wait_until
from support.serve_process import Served, start

SECRET = "zanzibar"
ID = "all-through-1"


@pytest.fixture(scope="module")
def served(tiny_model, tmp_path_factory):
    log = tmp_path_factory.mktemp("serve") / "log"
    served = start(tiny_model, ("ngram",), log, "--log-format", "json", "--log-level", "debug")
    with served.process:
        yield served
        served.process.terminate()


def lines(served: Served) -> list[dict]:
    """The whole log but for a line that is being written."""
    return [json.loads(line) for line in served.log.read_text().splitlines(keepends=True) if line.endswith("\n")]


def told(served: Served, service: str) -> list[dict]:
    """What a service has logged of the request."""
    return [line for line in lines(served) if line["service"] == service and line.get("request_id") == ID]


def test_every_service_names_the_request_and_none_its_words(served):
    served.wait_for(lambda facts: any(proposer.attached for proposer in facts.verify.proposers))
    body = {"model": "tiny", "prompt": SECRET, "max_tokens": 8, "ignore_eos": True}
    reply = httpx.post(f"{served.http}/v1/completions", json=body, headers={"x-request-id": ID}, timeout=60)
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-request-id"] == ID
    for service in ("gateway", "verify", "draft"):
        wait_until(lambda service=service: told(served, service), served.log.read_text)
    (access,) = [line for line in told(served, "gateway") if line["logger"] == "gateway.access.access_log"]
    assert access["completion_tokens"] == 8
    assert told(served, "draft")[0]["message"].endswith("ngram drafts for slot 0")
    (submitted,) = told(served, "verify")
    assert submitted["prompt_tokens"] == access["prompt_tokens"]
    assert {line["service"] for line in lines(served)} == {"slipstream", "gateway", "verify", "draft"}
    assert SECRET not in served.log.read_text()
