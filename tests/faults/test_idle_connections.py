"""More connections than the gateway has descriptors, which say nothing or little, on both of its ports."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter

import httpx
import pytest

from benchmarks.idle_connections.socket_crowd import Group, gathered
from slipstream import Client
from slipstream.rpc.errors import SlipstreamError
from support.ask import wait_until
from support.serve_process import start

DESCRIPTORS = 600
"""Of each service: 192 HTTP connections and some more, 86 gRPC ones."""
HTTP_SOCKETS = 2000
GRPC_SOCKETS = 600
HANG_SECONDS = 4
CROWD_SECONDS = 8


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return tmp_path_factory.mktemp("serve") / "log"


@pytest.fixture(scope="module")
def served(tiny_model, log):
    limits = ("--hang-seconds", str(HANG_SECONDS), "--drain-seconds", "2", "--gateway-arg=--head-seconds=2")
    served = start(tiny_model, ("ngram",), log, *limits, descriptors=DESCRIPTORS)
    with served.process:
        yield served
        served.process.terminate()


def body(index):
    return {"model": "tiny", "prompt": [11, 12 + index], "max_tokens": 300, "ignore_eos": True, "seed": index}


def whole_text(served, index):
    answer = httpx.post(f"{served.http}/v1/completions", json=body(index), timeout=120)
    return answer.json()["choices"][0]["text"]


class Reader:
    """Reads one stream, over HTTP or gRPC; holds it open until told to go on."""

    def __init__(self, served, index, *, over_grpc):
        self._served, self._index = served, index
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.text = ""
        self._thread = threading.Thread(target=self._read_grpc if over_grpc else self._read_http, daemon=True)
        self._thread.start()

    def join(self):
        self._thread.join(120)

    def _hold(self):
        if not self.begun.is_set():
            self.begun.set()
            self.go_on.wait(120)

    def _read_http(self):
        url = f"{self._served.http}/v1/completions"
        with httpx.stream("POST", url, json=body(self._index) | {"stream": True}, timeout=120) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    self._hold()
                    self.text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]

    def _read_grpc(self):
        with Client(self._served.grpc) as client:
            for event in client.stream(
                token_ids=[11, 12 + self._index], max_tokens=300, ignore_eos=True, seed=self._index
            ):
                self._hold()
                self.text += event.text


def outcome(method, url, **arguments):
    try:
        return httpx.request(method, url, timeout=30, **arguments).status_code
    except httpx.HTTPError as error:
        return type(error).__name__


@pytest.mark.slow
def test_streams_go_on_and_nothing_is_killed(served, log):
    before, told = served.facts(), len(log.read_text())
    texts = [whole_text(served, index) for index in range(4)]
    readers = [Reader(served, index, over_grpc=index % 2 == 1) for index in range(4)]
    assert all(reader.begun.wait(30) for reader in readers)
    address = served.http.removeprefix("http://")
    groups = [
        Group(address, HTTP_SOCKETS, ("silent", "head", "body")),
        Group(served.grpc, GRPC_SOCKETS, ("silent", "http2")),
        Group(served.verify, GRPC_SOCKETS, ("silent",)),
    ]
    health, requests = Counter(), Counter()
    with gathered(groups, 120) as crowd:
        wait_until(lambda: crowd.state().opened > 3 * DESCRIPTORS, "the crowd never came")
        end = time.monotonic() + CROWD_SECONDS
        while time.monotonic() < end:
            health[outcome("GET", f"{served.http}/health")] += 1
            short = {"model": "tiny", "prompt": [9, 8], "max_tokens": 2}
            requests[outcome("POST", f"{served.http}/v1/completions", json=short)] += 1
        for reader in readers:
            reader.go_on.set()
        for reader in readers:
            reader.join()
    assert [reader.text for reader in readers] == texts
    assert set(requests) <= {200, 503}, requests
    assert health[200] >= 0.9 * health.total(), health
    after = served.wait_for(lambda facts: facts.complete)
    assert after.verify.process_id == before.verify.process_id
    assert served.process.poll() is None
    said = log.read_text()[told:]
    assert "is killed" not in said
    assert "starts again" not in said


@pytest.mark.slow
def test_both_ports_serve_as_before_afterwards(served):
    def answers():
        try:
            with Client(served.grpc) as client:
                client.list_models()
        except SlipstreamError:
            return False
        return outcome("GET", f"{served.http}/v1/models") == 200

    wait_until(answers, "a port was lost")
    assert whole_text(served, 0)
