"""Templates and tokenizers that mean harm, against a gateway process: at its start, and with a request."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from slipstream.rpc.channel import from_rpc_error, open_sync_channel
from slipstream.v1 import gateway_pb2, gateway_pb2_grpc
from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess
from support.loop_holds import LoopHolds

SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("chat_template.jinja", "{% if %}", "does not compile: Expected an expression"),
        ("chat_template.jinja", "{{ 3 ** (3 * 10 ** 8) }}", "not loaded within 9 s"),
        ("chat_template.jinja", "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "does not compile: RecursionError"),
        ("tokenizer_config.json", "{", "Expecting property name"),
        ("tokenizer_config.json", '{"chat_template": "{% x %}"}', "does not compile"),
        ("tokenizer.json", "{}", "Cannot instantiate Tokenizer"),
        ("tokenizer.json", "version https://git-lfs.github.com/spec/v1\noid sha256:1f\n", "run `git lfs pull` in"),
    ],
)
def test_a_start_is_refused_by_the_files_name(make_folder: Any, file: str, content: str, words: str) -> None:
    folder: Path = make_folder()
    if file == "tokenizer_config.json":
        (folder / "chat_template.jinja").unlink(missing_ok=True)
    (folder / file).write_text(content, "utf-8")
    seconds = "9" if words.endswith("within 9 s") else "60"  # what comes before the template takes a second or more
    command = [sys.executable, "-m", "gateway", "--model", str(folder), "--http-port", "0", "--grpc-port", "0",
               "--text-loading-seconds", seconds]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1), result.stderr
    assert f"cannot start: {folder / file}: " in result.stderr
    assert words in result.stderr


def test_a_constant_beyond_all_memory_costs_the_requests_that_need_it(make_folder: Any, verify: FakeVerify) -> None:
    with GatewayProcess(make_folder("{{ 'a' * 2 * 10**9 }}"), verify.address) as gateway:
        answer = chat(gateway, "x")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")
        assert "MemoryError" in answer.json()["error"]["message"]
        body = {"model": "tiny", "prompt": "x", "max_tokens": 1}
        assert httpx.post(f"{gateway.http_url}/v1/completions", json=body, timeout=60).status_code == 200


def chat(gateway: GatewayProcess, content: str) -> httpx.Response:
    body = {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 1}
    return httpx.post(f"{gateway.http_url}/v1/chat/completions", json=body, timeout=120)


HOSTILE_TEMPLATE = """\
{%- set what = messages[0].content -%}
{%- if what == 'zero' -%}{{ 1 / (what | length - 4) }}
{%- elif what == 'memory' -%}{{ what * 2000000000 }}
{%- elif what == 'double' -%}{%- set ns = namespace(x='aaaaaaaaaaaaaaaa') -%}
{%- for i in range(60) -%}{%- set ns.x = ns.x ~ ns.x -%}{%- endfor -%}{{ ns.x }}
{%- elif what == 'output' -%}
{%- for i in range(99999) -%}{%- for j in range(99999) -%}xxxxxxxx{%- endfor -%}{%- endfor -%}
{%- elif what == 'loop' -%}{%- for i in range(99999) -%}{%- for j in range(99999) -%}{%- endfor -%}{%- endfor -%}
{%- elif what == 'recursion' -%}{%- macro again(n) -%}{{ again(n + 1) }}{%- endmacro -%}{{ again(0) }}
{%- else -%}{{ what }}
{%- endif -%}"""


def test_what_a_template_does_costs_its_own_request_alone(make_folder: Any, verify: FakeVerify) -> None:
    """A loop without end holds one of two workers to its deadline; others are answered meanwhile.

    The deadline is far above what the others of these templates take on a machine that is busy.
    """
    limits = "--text-seconds", "5", "--text-memory-mib", "128"
    with GatewayProcess(make_folder(HOSTILE_TEMPLATE), verify.address, *limits) as gateway:
        holds = LoopHolds(gateway.http_url)
        for content, words in (
            ("zero", "ZeroDivisionError"),
            ("memory", "MemoryError"),
            ("double", "MemoryError"),
            ("output", "characters"),
            ("recursion", "RecursionError"),
        ):
            answer = chat(gateway, content)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"], words in error["message"]) == (400, "messages", True), error
        ended: list[httpx.Response] = []
        looping = threading.Thread(target=lambda: ended.append(chat(gateway, "loop")))
        looping.start()
        served = 0
        while looping.is_alive():
            assert chat(gateway, "good").status_code == 200
            served += not ended
        assert served >= 10
        error = ended[0].json()["error"]
        assert (ended[0].status_code, error["param"]) == (400, "messages"), error
        assert "not rendered and tokenised within 5 s" in error["message"]
        assert holds.beyond() == 0
        metrics = httpx.get(f"{gateway.http_url}/metrics", timeout=60).text
        assert 'slipstream_gateway_text_worker_ends_total{reason="deadline"} 1.0' in metrics
        assert "Traceback" not in gateway.logs


@pytest.mark.parametrize(
    ("pipeline", "text", "words"),
    [
        ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "abc", "chunk size"),
        ({"pre_tokenizer": SPLIT | {"pattern": {"Regex": "(a+)+$"}}}, "a" * 40 + "b", "retry-limit"),
        ({"pre_tokenizer": SPLIT | {"pattern": {"Regex": "a*a*b"}}}, "a" * 2500 + "cb", "within 1 s"),
        (
            {"normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaaaaaaaa"}] * 9}},
            "a", "",
        ),
    ],
    ids=["panic", "backtracking", "slow", "growth"],
)  # fmt: skip
def test_what_a_tokenizer_does_is_an_error_of_the_request(
    make_folder: Any, verify: FakeVerify, pipeline: dict[str, Any], text: str, words: str
) -> None:
    limits = "--text-seconds", "1" if words in ("", "within 1 s") else "2", "--text-memory-mib", "128"
    with GatewayProcess(make_folder(**pipeline), verify.address, *limits) as gateway:
        answer = httpx.post(
            f"{gateway.http_url}/v1/completions", json={"model": "tiny", "prompt": text, "max_tokens": 1}, timeout=120
        )
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt"), answer.text
        assert words in answer.json()["error"]["message"]
        with open_sync_channel(gateway.grpc_address) as channel:
            stub = gateway_pb2_grpc.GatewayServiceStub(channel)
            for call in (
                lambda: list(stub.Generate(gateway_pb2.GenerateRequest(text=text), timeout=60)),
                lambda: stub.Tokenize(gateway_pb2.TokenizeRequest(text=text), timeout=60),
            ):
                with pytest.raises(grpc.RpcError) as caught:
                    call()
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert from_rpc_error(caught.value).field in ("text", "prompt")
        assert httpx.get(f"{gateway.http_url}/health", timeout=60).status_code == 200


def test_a_tokenizer_that_panics_on_an_output_fails_its_request(make_folder: Any, verify: FakeVerify) -> None:
    strip = {"type": "Strip", "content": "a", "start": 2, "stop": 2}
    with GatewayProcess(make_folder(decoder=strip), verify.address) as gateway:
        body = {"model": "tiny", "prompt": "aa", "max_tokens": 4}
        answer = httpx.post(f"{gateway.http_url}/v1/completions", json=body, timeout=60)
        assert answer.status_code == 500
        assert "the tokenizer fails on the tokens" in answer.json()["error"]["message"]
        with open_sync_channel(gateway.grpc_address) as channel:
            stub = gateway_pb2_grpc.GatewayServiceStub(channel)
            with pytest.raises(grpc.RpcError) as caught:
                list(stub.Generate(gateway_pb2.GenerateRequest(text="aa"), timeout=60))
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert httpx.get(f"{gateway.http_url}/health", timeout=60).status_code == 200
