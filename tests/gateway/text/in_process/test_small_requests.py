"""Requests that the gateway reads by itself: the same answers as a worker's, in little time."""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import GatewaySettings
from gateway.text.in_process.small_requests import MOST_BYTES, MOST_MESSAGES, SmallRequests
from gateway.text.jobs import Jobs
from gateway.text.prepared import Prepared, WorkerTask
from gateway.tokens.tokenizer import Tokenizer
from slipstream.rpc.errors import SlipstreamError
from slipstream.v1 import gateway_pb2
from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess
from support.virtual_verify import INFO

DEMO = Path("demo_models/slipstream-demo").resolve()
FACTS = replace(INFO, vocab_size=8192)
LONGEST_HOLD = 0.05


class Both:
    """A request read here and by a worker's jobs."""

    def __init__(self, folder: Path) -> None:
        self.small = SmallRequests(GatewaySettings(model=folder), Tokenizer(folder))
        self.jobs = Jobs.load(folder, max_bytes=1 << 22, max_choices=128, stages=lambda file: None)
        self.longest = 0.0

    def read(self, job: WorkerTask, payload: bytes) -> Any:
        """What has become of it: prepared, refused, or None if it is left to workers. Both are the same."""
        gc.disable()  # a collection takes what all that is alive in this process takes
        begun = time.thread_time()
        here = outcome(lambda: self.small.prepare(job, payload, FACTS))
        self.longest = max(self.longest, time.thread_time() - begun)
        gc.enable()
        if here is not None:
            assert here == outcome(lambda: self.jobs.run(job, bytearray(payload), FACTS)), payload
        return here


def outcome(work: Any) -> Any:
    try:
        return work()
    except SlipstreamError as error:
        return type(error), error.message, error.field


@pytest.fixture(scope="module")
def both() -> Both:
    return Both(DEMO)


def chat(*messages: Any, **fields: Any) -> bytes:
    return json.dumps({"model": "tiny", "messages": messages, **fields}).encode()


def completion(prompt: Any, **fields: Any) -> bytes:
    return json.dumps({"model": "tiny", "prompt": prompt, **fields}).encode()


USER = {"role": "user", "content": "Which rivers flow through Vienna?"}


def test_ordinary_requests_are_read_here(both: Both) -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    for body in (chat(USER), chat({"role": "system", "content": "Be brief."}, USER, stream=True, n=3), chat(parts)):
        prepared = both.read(WorkerTask.CHAT, body)
        assert isinstance(prepared, Prepared)
        assert prepared.prompts[0]
    for prompt in ("abc", ["abc", "de"], [3, 4, 5], [[3], [4, 5]]):
        assert isinstance(
            both.read(WorkerTask.COMPLETION, completion(prompt, stop=["x"], logit_bias={"5": 1})), Prepared
        )
    for request in (
        gateway_pb2.GenerateRequest(text="abc", sampling={"max_tokens": 3}, stop=["x"]),
        gateway_pb2.GenerateRequest(token_ids={"ids": [1, 2, 3]}),
        gateway_pb2.GenerateRequest(chat={"messages": [USER]}),
    ):
        assert isinstance(both.read(WorkerTask.GENERATE, request.SerializeToString()), Prepared)


def test_refusals_are_the_same(both: Both) -> None:
    for job, body, field in (
        (WorkerTask.CHAT, chat(USER, model="other"), "model"),
        (WorkerTask.CHAT, chat(), "messages"),
        (WorkerTask.CHAT, chat(USER, {"role": "system", "content": "late"}), "messages"),
        (WorkerTask.CHAT, chat(USER, wings=2), "wings"),
        (WorkerTask.COMPLETION, completion(""), "prompt"),
        (WorkerTask.COMPLETION, completion([9000]), "prompt"),
        (WorkerTask.COMPLETION, completion("\ud800"), ""),
        (WorkerTask.COMPLETION, b"{", ""),
        (WorkerTask.GENERATE, b"\x0a", ""),
        (WorkerTask.GENERATE, b"", "prompt"),
    ):
        assert both.read(job, body)[2] == field, body


def test_what_may_be_dear_is_left_to_workers(both: Both) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    called = {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}  # fmt: skip  # noqa: E501
    for body in (
        chat({"role": "user", "content": "a" * MOST_BYTES}),
        chat(*[{"role": "user", "content": "a"}] * (MOST_MESSAGES + 1)),
        chat(USER, tools=[tool]),
        chat(USER, chat_template_kwargs={"a": 1}),
        chat(USER, reasoning_effort="medium"),
        chat(USER, response_format={"type": "json_object"}),
        chat(USER, structured_outputs={"regex": "(a+)+b"}),
        chat(USER, called),
        chat(USER | {"name": "n"}),
        chat(USER, metadata=[[]] * 600),
    ):
        assert both.read(WorkerTask.CHAT, body) is None, body
    assert both.read(WorkerTask.COMPLETION, completion([5], echo=True)) is None
    assert both.read(WorkerTask.COMPLETION, completion("a", structured_outputs={"regex": "(a+)+b"})) is None
    grammar = gateway_pb2.GenerateRequest(text="a", sampling={"grammar": {"regex": "(a+)+b"}})
    assert both.read(WorkerTask.GENERATE, grammar.SerializeToString()) is None
    assert both.read(WorkerTask.TOKENIZE, gateway_pb2.TokenizeRequest(text="a").SerializeToString()) is None


def test_a_model_that_may_be_dear_is_left_to_workers(make_folder: Any) -> None:
    folder = make_folder("{{ 'a' * 3 }}")
    small = Both(folder)
    assert small.read(WorkerTask.CHAT, chat(USER)) is None
    assert (
        small.read(WorkerTask.GENERATE, gateway_pb2.GenerateRequest(chat={"messages": [USER]}).SerializeToString())
        is None
    )
    assert isinstance(small.read(WorkerTask.COMPLETION, completion("abc")), Prepared)
    written = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    written["normalizer"] = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    (folder / "tokenizer.json").write_text(json.dumps(written))
    assert Both(folder).read(WorkerTask.COMPLETION, completion("abc")) is None


def test_what_a_template_writes_is_cut(make_folder: Any) -> None:
    small = Both(make_folder("{% for m in messages %}{% for k in messages %}{{ m.content }}{% endfor %}{% endfor %}"))
    assert isinstance(small.read(WorkerTask.CHAT, chat(USER)), Prepared)
    assert small.read(WorkerTask.CHAT, chat(*[{"role": "user", "content": "a" * 90}] * MOST_MESSAGES)) is None


TEXTS = st.text(max_size=40) | st.sampled_from(
    ["\ud800", "'" * 900, " " * 3000, "<|begin|>" * 300, "中" * 900, "1" * 3500]
)
SCALARS = st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
REPEATED = st.tuples(VALUES, st.integers(1, 1200)).map(lambda pair: [pair[0]] * pair[1])
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "assistant", "tool", "nobody"])},
        optional={"content": TEXTS | VALUES, "name": TEXTS, "tool_calls": VALUES},
    )
    | VALUES,
    max_size=40,
)
FIELDS = ["n", "stop", "logit_bias", "stop_token_ids", "max_tokens", "temperature", "user", "metadata", "echo", "wings"]


@settings(max_examples=150, derandomize=True, database=None, deadline=None)
@given(
    prompt=TEXTS | st.lists(st.integers(-1, 9000), max_size=600) | st.lists(TEXTS, max_size=140) | REPEATED | VALUES,
    messages=MESSAGES | REPEATED,
    fields=st.dictionaries(st.sampled_from(FIELDS), VALUES | REPEATED, max_size=2),
)
def test_any_body_is_read_as_by_a_worker_and_in_time(both: Both, prompt: Any, messages: Any, fields: Any) -> None:
    for job, body in (
        (WorkerTask.COMPLETION, {"model": "tiny", "prompt": prompt} | fields),
        (WorkerTask.CHAT, {"model": "tiny", "messages": messages} | fields),
    ):
        payload = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
        both.read(job, payload)
        both.read(job, payload[:MOST_BYTES])
    assert both.longest < LONGEST_HOLD


@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(
    unit=st.binary(min_size=1, max_size=6)
    | st.sampled_from([b"\x32\x00", b"\x0a\x00", b"\x08\x01", b"\x9b\x06", b"\x4a\x00", b"\x12\x01a"]),
    count=st.integers(1, MOST_BYTES),
    field=st.integers(1, 9),
)
def test_any_message_is_read_as_by_a_worker_and_in_time(both: Both, unit: bytes, count: int, field: int) -> None:
    data = (unit * count)[: MOST_BYTES - 4]
    both.read(WorkerTask.GENERATE, data)
    both.read(WorkerTask.GENERATE, bytes([field << 3 | 2, 0x80 | len(data) & 0x7F, len(data) >> 7]) + data)
    assert both.longest < LONGEST_HOLD


def test_small_requests_do_not_wait_for_workers(verify: FakeVerify, tokenizer_folder: Path) -> None:
    with GatewayProcess(tokenizer_folder, verify.address) as gateway:

        def ask(seconds: float, *, echo: bool = False) -> int:
            body = {"model": "tiny", "prompt": "abc", "max_tokens": 1, "echo": echo}
            return httpx.post(f"{gateway.http_url}/v1/completions", json=body, timeout=seconds).status_code

        workers = psutil.Process(gateway.process.pid).children(recursive=True)
        for worker in workers:
            os.kill(worker.pid, signal.SIGSTOP)
        assert ask(60) == 200
        with pytest.raises(httpx.ReadTimeout):
            ask(0.5, echo=True)
        for worker in workers:
            os.kill(worker.pid, signal.SIGCONT)
        assert ask(60, echo=True) == 200
