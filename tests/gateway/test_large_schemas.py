"""Grammars of 10 MB, over HTTP and gRPC: refused by name, while another client's stream goes on."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from slipstream import Client, Grammar
from slipstream.rpc.errors import InvalidArgumentError
from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess
from support.loop_holds import LoopHolds, longest_hold
from support.tool_template import TEMPLATE

SIZE = 10 * 1000 * 1000
SECONDS = 30.0
"""Within which each is answered, on a machine with other work: texts may take 10."""
BEGUN = 5
"""Chunks of a stream that is under way."""
KEY = "k" * 400
WIDE = {"type": "object", "properties": {f"{KEY}{n}": {"enum": [KEY * (SIZE // 430_000)]} for n in range(1000)}}
LONG = "x" * SIZE
CHOICES = [KEY * 3 + str(number) for number in range(8000)]
FORMAT = "response_format.json_schema.schema"


def with_schema(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def with_tool(**definition: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", **definition}}], "tool_choice": "required"}


BODIES: dict[str, tuple[dict[str, Any], str]] = {
    "a value": (with_schema({"enum": [LONG]}), FORMAT),
    "a description": (with_schema({"type": "object", "description": LONG}), FORMAT),
    "properties": (with_schema(WIDE), FORMAT),
    "text": ({"structured_outputs": {"json": json.dumps(WIDE)}}, "structured_outputs.json"),
    "a pattern": ({"structured_outputs": {"regex": LONG}}, "structured_outputs.regex"),
    "rules": ({"structured_outputs": {"grammar": 'start: "a"\n' * (SIZE // 11)}}, "structured_outputs.grammar"),
    "choices": ({"structured_outputs": {"choice": CHOICES}}, "structured_outputs.choice"),
    "parameters, which the prompt has": (with_tool(parameters=WIDE), "messages"),
}  # fmt: skip


def with_grammar(definition: str) -> dict[str, Any]:
    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": definition}}
    return {"tools": [{"type": "custom", "custom": {"name": "f", "format": grammar}}], "tool_choice": "required"}


DEFINITION = "tools[0].custom.format.grammar.definition"
BODIES["rules of a custom tool"] = with_grammar('start: "a"\n' * (SIZE // 11)), DEFINITION
HOSTILE = {
    "terminals": "start: "
    + " | ".join(f"T{n}" for n in range(1500))
    + "\n"
    + "\n".join(f'T{n}: "{n}"' for n in range(1500)),
    "doubling": "start: T0\n" + "\n".join(f"T{n}: T{n + 1} T{n + 1}" for n in range(60)) + '\nT60: "\\n"',
    "counts": "start: /" + "(" * 40 + "a" + "){1000}" * 40 + "/",
    "repetitions": "start: " + "(" * 40 + '"a"' + "){100}" * 40,
    "brackets": "start: " + "(" * 5000 + '"a"' + ")" * 5000,
    "ways": 'start: s\ns: s s | "a"' + " | s" * 3000,
    "denied": "start: A\nA: " + " & ".join(["~/.*a.{200}/"] * 200),
}
GRAMMARS: dict[str, tuple[Grammar, str]] = {
    "properties": (Grammar(json_schema=json.dumps(WIDE)), "sampling.grammar.json_schema"),
    "a pattern": (Grammar(regex=LONG), "sampling.grammar.regex"),
    "rules": (Grammar(lark='start: "a"\n' * (SIZE // 11)), "sampling.grammar.lark"),
    "choices": (Grammar(choice=tuple(CHOICES)), "sampling.grammar.choice"),
}


class Neighbour:
    """A stream of another client's, a token every 20 ms."""

    def __init__(self, url: str, verify: FakeVerify) -> None:
        verify.reset(step_seconds=0.02)
        self.chunks = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(url,))
        self._thread.start()
        self.wait_for(BEGUN)

    def _read(self, url: str) -> None:
        body = {"model": "tiny", "prompt": "abc", "stream": True, "ignore_eos": True, "max_tokens": 4000}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as answer:
            for line in answer.iter_lines():
                self.chunks += line.startswith("data:")
                if self._done.is_set():
                    return

    def wait_for(self, chunks: int) -> None:
        end = time.monotonic() + SECONDS
        while self.chunks < chunks:
            assert time.monotonic() < end
            time.sleep(0.01)

    def stop(self) -> None:
        self._done.set()
        self._thread.join()


@pytest.fixture(scope="module")
def wide_gateway(
    tool_verify: FakeVerify, tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """A gateway whose limit of bodies lets 10 MB through."""
    template = tmp_path_factory.mktemp("template") / "tools.jinja"
    template.write_text(TEMPLATE, "utf-8")
    options = ("--chat-template", str(template), "--max-body-bytes", str(16 << 20))
    with GatewayProcess(tokenizer_folder, tool_verify.address, *options) as process:
        yield process
        assert "Traceback" not in process.logs


@pytest.fixture
def neighbour(wide_gateway: GatewayProcess, tool_verify: FakeVerify) -> Iterator[Neighbour]:
    """A stream that goes on: no step of the gateway's loop is longer than what its monitor lets pass."""
    stream = Neighbour(wide_gateway.http_url, tool_verify)
    holds = LoopHolds(wide_gateway.http_url)
    yield stream
    stream.wait_for(stream.chunks + BEGUN)
    assert holds.beyond() == 0, longest_hold(wide_gateway.http_url)
    stream.stop()


def post(gateway: GatewayProcess, body: dict[str, Any]) -> httpx.Response:
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "?"}], "max_tokens": 4, **body}
    begun = time.monotonic()
    answer = httpx.post(f"{gateway.http_url}/v1/chat/completions", json=asked, timeout=120)
    assert time.monotonic() - begun < SECONDS
    return answer


@pytest.mark.parametrize("name", BODIES)
def test_over_http_its_field_is_named(wide_gateway: GatewayProcess, neighbour: Neighbour, name: str) -> None:
    body, field = BODIES[name]
    answer = post(wide_gateway, body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, field), error
    assert len(error["message"]) < 500


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_of_a_custom_tool_costs_its_own_request(
    wide_gateway: GatewayProcess, neighbour: Neighbour, name: str
) -> None:
    """One that is not refused is the verify service's to decide on."""
    answer = post(wide_gateway, with_grammar(HOSTILE[name]) | {"max_tokens": 1})
    refused = answer.status_code == 400 and answer.json()["error"]["param"] == DEFINITION
    too_long = answer.status_code == 400 and answer.json()["error"]["param"] == "messages"  # the prompt shows it
    assert refused or too_long or answer.status_code == 200, answer.text


@pytest.mark.parametrize("name", GRAMMARS)
def test_over_grpc_its_field_is_named(wide_gateway: GatewayProcess, neighbour: Neighbour, name: str) -> None:
    grammar, field = GRAMMARS[name]
    begun = time.monotonic()
    with Client(wide_gateway.grpc_address) as client, pytest.raises(InvalidArgumentError) as caught:
        client.generate("Say", grammar=grammar, max_tokens=4)
    assert time.monotonic() - begun < SECONDS
    assert caught.value.field == field, caught.value.message
    assert len(caught.value.message) < 500


def test_beyond_the_limit_of_bodies_nothing_is_read(tool_gateway: GatewayProcess, tool_verify: FakeVerify) -> None:
    """The default limit is 4 MiB."""
    stream, holds = Neighbour(tool_gateway.http_url, tool_verify), LoopHolds(tool_gateway.http_url)
    answer = post(tool_gateway, BODIES["a value"][0])
    assert answer.status_code == 413
    assert "4194304" in answer.json()["error"]["message"]
    with Client(tool_gateway.grpc_address) as client, pytest.raises(InvalidArgumentError, match="4194304"):
        client.generate("Say", grammar=GRAMMARS["a pattern"][0])
    stream.wait_for(stream.chunks + BEGUN)
    stream.stop()
    assert holds.beyond() == 0, longest_hold(tool_gateway.http_url)
    assert len(tool_verify.seen.submits) == 1
