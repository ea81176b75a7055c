"""Bodies that mean harm: refused by name, while a stream goes on and memory stays bounded."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.ask import wait_until
from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess
from support.loop_holds import LoopHolds
from support.peak_memory import PeakMemory

MOST = 4 * 1024 * 1024
MEMORY_FACTOR = 10
LEAST_MEMORY = 8 * 1024 * 1024
"""What smaller bodies may take too: buffers, and pages that are touched for the first time."""

COMPLETION = b'{"model": "tiny", "prompt": '
CHAT = b'{"model": "tiny", "messages": '


class Stream:
    """A stream of another client's, which must go on."""

    def __init__(self, url: str, verify: FakeVerify) -> None:
        verify.reset(step_seconds=0.02)
        self.chunks = 0
        self.status = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(url,))
        self._thread.start()

    def _read(self, url: str) -> None:
        body = {"model": "tiny", "prompt": "abc", "stream": True, "ignore_eos": True, "max_tokens": 500}
        while not self._done.is_set():
            with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as answer:
                self.status = answer.status_code
                for line in answer.iter_lines():
                    self.chunks += line.startswith("data:")
                    if self._done.is_set():
                        return

    def stop(self) -> None:
        self._done.set()
        self._thread.join()


@pytest.fixture(scope="module")
def hostile_gateway(shared_verify: FakeVerify, tokenizer_folder: Path) -> Iterator[GatewayProcess]:
    with GatewayProcess(tokenizer_folder, shared_verify.address) as gateway:
        for path, body in (("completions", COMPLETION + b'"x"'), ("chat/completions", CHAT + b'[{"role": "user"}]')):
            for _ in range(4):
                assert post(gateway, path, body + b', "max_tokens": 1}').status_code == 200
        yield gateway
        assert gateway.process.poll() is None
        assert "Traceback" not in gateway.logs


def post(gateway: GatewayProcess, path: str, body: bytes) -> httpx.Response:
    headers = {"content-type": "application/json"}
    url = gateway.http_url + (path if path.startswith("/") else f"/v1/{path}")
    return httpx.post(url, content=body, headers=headers, timeout=120)


def filled(begin: bytes, unit: bytes, end: bytes, size: int = MOST - 64) -> bytes:
    return begin + unit * ((size - len(begin) - len(end)) // len(unit) - 1) + unit.rstrip(b",") + end


def many(begin: bytes, unit: bytes, end: bytes, size: int = MOST - 64) -> bytes:
    """Like `filled`, each unit with a number of its own."""
    width = len(unit % 0) + 1
    return begin + b",".join(unit % index for index in range((size - len(begin) - len(end)) // width)) + end


MESSAGE = b'{"role":"user","content":"%06d' + b"x" * 400 + b'"}'
SHAPES: dict[str, tuple[str, bytes, str]] = {
    "negative": ("completions", filled(COMPLETION + b"[", b"-1,", b"]}"), "prompt"),
    "fractions": ("completions", filled(COMPLETION + b"[", b"1.5,", b"]}"), "prompt"),
    "nulls": ("completions", filled(COMPLETION + b"[", b"null,", b"]}"), "prompt"),
    "lists": ("completions", filled(COMPLETION + b"[", b"[],", b"]}"), "prompt"),
    "ones": ("completions", filled(COMPLETION + b"[", b"1,", b"]}"), "prompt"),
    "ids": ("completions", many(COMPLETION + b"[", b"%06d".replace(b"0", b""), b"]}", MOST // 2), "prompt"),
    "beyond 32 bits": ("completions", filled(COMPLETION + b"[", b"9999999999,", b"]}"), "prompt"),
    "strings": ("completions", filled(COMPLETION + b"[", b'"ab",', b"]}"), "prompt"),
    "some strings": ("completions", many(COMPLETION + b"[", b'"%06d' + b"x" * 30 + b'"', b"]}"), "n"),
    "id lists": ("completions", filled(COMPLETION + b"[", b"[" + b"301," * 1500 + b"3],", b"]}"), "n"),
    "text": ("completions", filled(COMPLETION + b'"', b"ab, ", b'"}'), "prompt"),
    "wide text": ("completions", filled(COMPLETION + '"\N{GRINNING FACE}'.encode(), b"ab, ", b'"}'), "prompt"),
    "escapes": ("completions", filled(COMPLETION + b'"', b"\\u00e9", b'"}'), "prompt"),
    "stop": ("completions", filled(COMPLETION + b'"x","stop":[', b'"a",', b"]}"), "stop"),
    "stop ids": ("completions", filled(COMPLETION + b'"x","stop_token_ids":[', b"1,", b"]}"), "stop_token_ids"),
    "biases": ("completions", many(COMPLETION + b'"x","logit_bias":{', b'"%06d":1', b"}}"), "logit_bias"),
    "one bias": ("completions", filled(COMPLETION + b'"x","logit_bias":{', b'"x":1,', b"}}"), "logit_bias"),
    "long key": ("completions", COMPLETION + b'"x","' + b"k" * (MOST - 99) + b'":1}', "k" * 200 + "..."),
    "ignored": ("completions", filled(COMPLETION + b'"x","metadata":[', b'{"a":[{}]},', b"]}"), "metadata"),
    "nulls by name": ("completions", many(COMPLETION + b'"x",', b'"%06d":null', b"}", 400_000), ""),
    "tools": ("chat/completions", filled(CHAT + b'[{"role":"user"}],"tools":[', b'{"a":1},', b"]}"), "tools"),
    "annotations": (
        "chat/completions",
        filled(CHAT + b'[{"role":"user","annotations":[', b'{"a":[]},', b"]}]}"),
        "messages",
    ),
    "text to tokenise": ("/tokenize", filled(b'{"prompt":"', b"ab, ", b'"}'), "prompt"),
    "tokens": ("/detokenize", filled(b'{"tokens":[', b"1,", b"]}"), "tokens"),
    "tokens in lists": ("/detokenize", filled(b'{"tokens":[', b"[1],", b"]}"), "tokens"),
    "empty messages": ("chat/completions", filled(CHAT + b"[", b"{},", b"]}"), "messages"),
    "messages": ("chat/completions", many(CHAT + b"[", MESSAGE, b"]}"), "messages"),
    "parts": ("chat/completions", filled(CHAT + b'[{"role":"user","content":[', b"{},", b"]}]}"), "messages"),
    "chat": ("chat/completions", filled(CHAT + b'[{"role":"user","content":"', b"ab, ", b'"}]}'), "messages"),
}


def check(gateway: GatewayProcess, path: str, body: bytes) -> httpx.Response:
    """Post, and hold the gateway to its bounds."""
    holds, memory = LoopHolds(gateway.http_url), PeakMemory(gateway.process.pid)
    answer = post(gateway, path, body)
    assert memory.grown() <= max(LEAST_MEMORY, MEMORY_FACTOR * len(body))
    assert holds.beyond() == 0
    return answer


def test_a_body_up_to_the_limit_is_refused_by_name_and_nobody_else_notices(
    hostile_gateway: GatewayProcess, verify: FakeVerify
) -> None:
    stream = Stream(hostile_gateway.http_url, verify)
    try:
        for name, (path, body, field) in SHAPES.items():
            before = stream.chunks
            answer = check(hostile_gateway, path, body)
            error = answer.json()["error"]
            assert (name, answer.status_code, error["param"] or "") == (name, 400, field), error
            wait_until(lambda before=before: stream.chunks > before, name)
        assert stream.status == 200
    finally:
        stream.stop()


def test_the_longest_prompts_of_use_are_taken(tokenizer_folder: Path) -> None:
    ids = [index % 512 for index in range(699_000)]
    body = json.dumps({"model": "tiny", "prompt": ids, "max_tokens": 1}, separators=(",", ":")).encode()
    with (
        FakeVerify(max_context=1_000_000) as verify,
        GatewayProcess(tokenizer_folder, verify.address) as gateway,
    ):
        many = json.dumps({"model": "tiny", "prompt": ids[:100_000], "max_tokens": 1, "n": 128}).encode()
        holds = LoopHolds(gateway.http_url)
        assert post(gateway, "completions", body).status_code == 200
        assert verify.seen.submits[0].prompt_token_ids == ids
        assert post(gateway, "completions", many).status_code == 200
        assert [submit.prompt_token_ids == ids[:100_000] for submit in verify.seen.submits[1:]] == [True] * 128
        assert holds.beyond() == 0


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**30), 10**30), st.floats(), st.text(max_size=8),
    st.sampled_from(["\ud800", "\\", '"', "\x00", "\N{GRINNING FACE}"]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
WRAPS = [(b"[", b"]"), (b"[[", b"]]"), (b'{"a":[', b"]}"), (b'[{"role":"user","content":[', b"]}]"), (b"", b"")]
FIELDS = st.sampled_from(
    ["prompt", "messages", "stop", "logit_bias", "stop_token_ids", "metadata", "n", "user", "wings"]
)


def written(value: Any) -> bytes:
    """JSON, or what looks like it: NaN, and lone surrogates as they are."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


@settings(max_examples=30, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(
    path=st.sampled_from(["completions", "chat/completions"]),
    field=FIELDS,
    unit=VALUES,
    wrap=st.sampled_from(WRAPS),
    keyed=st.booleans(),
    exponent=st.integers(6, 22),
)  # fmt: skip
def test_any_shape_is_answered_within_bounds(
    hostile_gateway: GatewayProcess,
    path: str,
    field: str,
    unit: Any,
    wrap: tuple[bytes, bytes],
    keyed: bool,
    exponent: int,
) -> None:
    """One value repeated up to a size, inside what comes before and after it; with `keyed` as a key written often."""
    begin, end = wrap
    entry = (written(field) + b":" if keyed else b"") + written(unit) + b","
    head = b'{"model": "tiny", ' + (b"" if keyed else written(field) + b":" + begin)
    tail = b"}" if keyed else end + b"}"
    answer = check(
        hostile_gateway, path, filled(head, entry, tail, max(2**exponent - 64, len(head + entry + tail) + 9))
    )
    assert 200 <= answer.status_code < 500, answer.text[:500]
    if answer.status_code != 200:
        assert answer.json()["error"]["message"]


def test_after_all_of_it_requests_are_served(hostile_gateway: GatewayProcess, verify: FakeVerify) -> None:
    assert post(hostile_gateway, "completions", COMPLETION + b'"x", "max_tokens": 1}').status_code == 200
