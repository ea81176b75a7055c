"""The sampling parameters of a model's generation_config.json, as they reach the verify service."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.core.request import Sampling, VerifyInfo
from gateway.core.sampling_defaults import completed, read_defaults
from slipstream.client import Client
from slipstream.generation_config import SamplingDefaults
from slipstream.rpc.errors import FailedPreconditionError
from slipstream.v1 import sampling_pb2
from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess

DEFAULTS = {"temperature": 0.5, "top_k": 20, "top_p": 0.75, "min_p": 0.125, "repetition_penalty": 1.5}
FIELDS = (*DEFAULTS, "max_tokens")


def write(folder: Path, content: dict[str, Any]) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def own_gateway(
    shared_verify: FakeVerify, tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    folder = Path(shutil.copytree(tokenizer_folder, tmp_path_factory.mktemp("defaults") / "model"))
    write(folder, {**DEFAULTS, "max_new_tokens": 3, "do_sample": True, "eos_token_id": 2})
    with GatewayProcess(folder, shared_verify.address) as process:
        yield process


def asked(verify: FakeVerify) -> dict[str, float]:
    """What the last request was sampled with, of the fields that a default may set."""
    sampling: sampling_pb2.SamplingParams = verify.seen.submits[-1].sampling
    return {name: getattr(sampling, name) for name in FIELDS if sampling.HasField(name)}


def post(gateway: GatewayProcess, path: str, **body: Any) -> None:
    prompt = {"messages": [{"role": "user", "content": "Hi"}]} if "chat" in path else {"prompt": "Hi"}
    answer = httpx.post(f"{gateway.http_url}/v1/{path}", json={"model": "tiny", **prompt, **body}, timeout=60)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_http_requests_take_what_they_leave_open_from_the_model(
    own_gateway: GatewayProcess, verify: FakeVerify, path: str
) -> None:
    post(own_gateway, path)
    assert asked(verify) == DEFAULTS | {"max_tokens": 3}
    post(own_gateway, path, temperature=None, top_k=None)
    assert asked(verify) == DEFAULTS | {"max_tokens": 3}
    neutral = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "max_tokens": 9}
    post(own_gateway, path, **neutral)
    assert asked(verify) == neutral
    post(own_gateway, path, temperature=0)
    assert asked(verify) == DEFAULTS | {"temperature": 0, "max_tokens": 3}


def test_grpc_requests_do_too(own_gateway: GatewayProcess, verify: FakeVerify) -> None:
    with Client(own_gateway.grpc_address) as client:
        client.generate("Hi", timeout=60)
        assert asked(verify) == DEFAULTS | {"max_tokens": 3}
        client.generate("Hi", temperature=1.0, top_k=0, max_tokens=5, timeout=60)
        assert asked(verify) == DEFAULTS | {"temperature": 1.0, "top_k": 0, "max_tokens": 5}


def test_the_log_says_what_is_used(own_gateway: GatewayProcess) -> None:
    wanted = "sampled with temperature=0.5, top_k=20, top_p=0.75, min_p=0.125, repetition_penalty=1.5, max_tokens=3"
    assert own_gateway.logs.count(wanted) == 1


def test_a_model_without_such_values_leaves_requests_as_they_are(gateway: GatewayProcess, verify: FakeVerify) -> None:
    post(gateway, "completions")
    assert asked(verify) == {}


def test_the_flag_turns_them_off(tokenizer_folder: Path, tmp_path: Path) -> None:
    folder = write(Path(shutil.copytree(tokenizer_folder, tmp_path / "model")), DEFAULTS)
    assert read_defaults(folder, "auto").given() == DEFAULTS
    assert read_defaults(folder, "none").given() == {}
    with pytest.raises(FailedPreconditionError, match="--generation-config: 'nowhere' is neither auto nor none"):
        read_defaults(folder, "nowhere")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"temperature": 3}, "temperature must be 0 or from 1e-05 to 2, got 3; --generation-config none leaves it out"),
        ({"top_p": 0}, "top_p must be greater than 0 and at most 1"),
        ({"max_new_tokens": 0}, "max_new_tokens must be from 1 to"),
        ({"top_k": "all"}, "top_k must be a whole number"),
    ],
)
def test_values_that_no_request_could_ask_for_are_named(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    with pytest.raises(FailedPreconditionError) as raised:
        read_defaults(write(tmp_path, content), "auto")
    assert str(raised.value).startswith(f"{tmp_path / 'generation_config.json'}: {message}")


def test_a_default_length_gives_way_to_the_room_and_to_min_tokens() -> None:
    info = VerifyInfo("tiny", "", 512, 100, 64, 1, frozenset(), (), "")
    defaults = SamplingDefaults(max_tokens=40)
    for given, prompt, expected in (
        (Sampling(), 10, 40),
        (Sampling(), 80, 20),
        (Sampling(min_tokens=50), 10, 50),
        (Sampling(max_tokens=90), 10, 90),
    ):
        assert completed(given, defaults, prompt, info).max_tokens == expected
