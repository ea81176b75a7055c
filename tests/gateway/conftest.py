"""A gateway process in front of a verify service without a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess
from support.models import write_tokenizer
from support.tool_template import TEMPLATE, ScriptedModel


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a byte-level tokenizer of 512 tokens and a chat template, without weights."""
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, vocab_size=512, max_context=512)
    return folder


@pytest.fixture(scope="session")
def shared_verify() -> Iterator[FakeVerify]:
    """The one that `gateway` talks to; use `verify`, which resets it."""
    with FakeVerify() as verify:
        yield verify


@pytest.fixture
def verify(shared_verify: FakeVerify) -> FakeVerify:
    """A verify service that says the prompt again and again, with nothing recorded yet."""
    shared_verify.reset()
    return shared_verify


@pytest.fixture(scope="session")
def shared_gateway(shared_verify: FakeVerify, tokenizer_folder: Path) -> Iterator[GatewayProcess]:
    """See `gateway`."""
    with GatewayProcess(tokenizer_folder, shared_verify.address, "--max-body-bytes", "1048576") as process:
        yield process


@pytest.fixture
def gateway(shared_gateway: GatewayProcess, verify: FakeVerify) -> GatewayProcess:
    """A running gateway in front of `verify`."""
    return shared_gateway


@pytest.fixture
def client(gateway: GatewayProcess) -> openai.OpenAI:
    """The official client of `gateway`."""
    return openai.OpenAI(base_url=f"{gateway.http_url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="session")
def tool_verify() -> Iterator[FakeVerify]:
    """The one that `tool_gateway` talks to."""
    with FakeVerify(max_context=4096) as verify:
        yield verify


@pytest.fixture(scope="session")
def tool_gateway(
    tool_verify: FakeVerify, tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """A gateway whose chat template knows tools and reasoning."""
    template = tmp_path_factory.mktemp("template") / "tools.jinja"
    template.write_text(TEMPLATE, "utf-8")
    with GatewayProcess(tokenizer_folder, tool_verify.address, "--chat-template", str(template)) as process:
        yield process


@pytest.fixture
def model(tool_verify: FakeVerify, tokenizer_folder: Path) -> ScriptedModel:
    """What answers behind `tool_client`."""
    return ScriptedModel(tool_verify, tokenizer_folder)


@pytest.fixture
def tool_client(tool_gateway: GatewayProcess) -> openai.OpenAI:
    """The official client of `tool_gateway`."""
    return openai.OpenAI(base_url=f"{tool_gateway.http_url}/v1", api_key="none", max_retries=0)
