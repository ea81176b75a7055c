from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipstream import AsyncClient, Client, SpeculationOptions
from slipstream.completion import SourceCount
from slipstream.rpc.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from support.fake_verify import EOS_ID, FakeVerify
from support.gateway_process import GatewayProcess
from support.models import write_tokenizer

CHAT = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def shared_verify() -> Iterator[FakeVerify]:
    with FakeVerify() as verify:
        yield verify


@pytest.fixture(scope="module")
def gateway(shared_verify: FakeVerify, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, vocab_size=512, max_context=512)
    with GatewayProcess(folder, shared_verify.address) as process:
        yield process


@pytest.fixture
def verify(shared_verify: FakeVerify) -> FakeVerify:
    shared_verify.reset()
    return shared_verify


@pytest.fixture
def client(gateway: GatewayProcess) -> Iterator[Client]:
    with Client(gateway.grpc_address) as client:
        yield client


def test_generate_collects_what_stream_gives(client: Client, verify: FakeVerify) -> None:
    verify.reset(tokens_per_step=2)
    whole = client.generate("Hello there", max_tokens=5, seed=9, logprobs=1, ignore_eos=True)
    events = list(client.stream("Hello there", max_tokens=5, seed=9, logprobs=1, ignore_eos=True))
    assert whole.text == "".join(event.text for event in events)
    assert whole.token_ids == tuple(token for event in events for token in event.token_ids)
    assert [position.chosen.token_id for position in whole.logprobs] == list(whole.token_ids)
    assert [step.accepted for step in whole.steps] == [1, 1, 0]
    assert [step.sources for step in whole.steps] == [(SourceCount("member", 4, accepted),) for accepted in (1, 1, 0)]
    assert (whole.seed, whole.finish_reason) == (9, "length")
    assert (whole.usage.completion_tokens, whole.usage.verify_steps) == (5, 3)
    assert whole.usage.acceptance_length == pytest.approx(5 / 3)
    assert events[0].seed == 9
    assert events[0].usage is None
    assert whole.timings.total == 0.25


def test_every_kind_of_prompt_and_option(client: Client, verify: FakeVerify) -> None:
    chat = client.generate(messages=CHAT)
    assert (chat.stop_token_id, chat.finish_reason) == (EOS_ID, "stop")
    ids = client.tokenize(messages=CHAT)
    assert client.generate(token_ids=ids).token_ids == chat.token_ids
    stopped = client.generate(
        "one two", stop="two", logit_bias={5: -1.5}, tenant="red", choice_index=2, temperature=0,
        speculation=SpeculationOptions(enabled=True, proposer="ngram", max_nodes=8), model="tiny",
    )  # fmt: skip
    assert (stopped.text, stopped.stop_string) == ("one ", "two")
    submit = verify.seen.submits[-1]
    assert (submit.tenant, submit.choice_index) == ("red", 2)
    assert (submit.speculation.enabled, submit.speculation.max_nodes) == (True, 8)
    assert not submit.speculation.HasField("max_depth")
    assert dict(submit.sampling.logit_bias) == {5: -1.5}
    assert submit.sampling.temperature == 0


def test_models_and_tokens(client: Client) -> None:
    (model,) = client.list_models()
    assert (model.name, model.max_context, model.vocab_size) == ("tiny", 512, 512)
    assert (model.proposers, model.default_proposer) == (("ngram",), "ngram")
    assert len(client.tokenize("abc")) == 3


def test_errors_are_those_of_the_table(client: Client, verify: FakeVerify) -> None:
    with pytest.raises(InvalidArgumentError, match="0 or from 1e-05 to 2") as caught:
        client.generate("x", temperature=3)
    assert caught.value.field == "sampling.temperature"
    with pytest.raises(NotFoundError):
        client.tokenize("x", model="none")
    verify.reset(step_seconds=0.1)
    with pytest.raises(DeadlineExceededError):
        client.generate("x", ignore_eos=True, timeout=0.3)
    verify.wait_for(lambda seen: len(seen.cancels) == len(seen.submits))  # none where the gateway was too busy


@pytest.mark.parametrize(
    "arguments", [{}, {"prompt": "x", "token_ids": [1]}, {"prompt": "x", "top_k": -1}, {"token_ids": ["a"]}]
)
def test_what_cannot_be_written_is_refused_at_once(client: Client, arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        client.stream(**arguments)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    ("arguments", "field", "words"),
    [
        ({"prompt": "x", "seed": -1}, "seed", "out of range: -1"),
        ({"prompt": "x", "top_k": "a"}, "top_k", "'a'"),
        ({"prompt": "x", "stop_token_ids": [2**32] * 1000}, "stop_token_ids", "..."),
        ({"prompt": "x", "stop": 5}, "stop", "5"),
        ({"prompt": "x", "model": 5}, "model", "5"),
        ({"prompt": "x", "grammar": "a"}, "grammar", "slipstream.Grammar"),
        ({"prompt": "\ud800"}, "prompt", "surrogates"),
        ({"prompt": [1, 2]}, "prompt", "token_ids="),
        ({"token_ids": [-1]}, "token_ids", "out of range: -1"),
        ({"messages": [{"role": "user"}]}, "messages[0]", "lacks 'content'"),
        ({"messages": [{"role": "user", "content": "a"}, "b"]}, "messages[1]", "'b'"),
    ],
)
def test_what_cannot_be_written_is_named(client: Client, arguments: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        client.generate(**arguments)
    assert raised.value.field == field
    assert raised.value.message.startswith(field)
    assert words in raised.value.message
    assert len(raised.value.message) < 300


def test_an_unknown_option_is_a_type_error(client: Client) -> None:
    with pytest.raises(TypeError, match="temprature"):
        client.stream("x", temprature=1)  # type: ignore[call-arg]  # wrong on purpose


def test_leaving_a_stream_cancels_it(client: Client, verify: FakeVerify) -> None:
    verify.reset(step_seconds=0.05)
    with client.stream("x", ignore_eos=True) as events:
        next(events)
    verify.wait_for(lambda seen: len(seen.cancels) == 1)


def test_nobody_there_is_unavailable() -> None:
    with Client("127.0.0.1:9") as client, pytest.raises(UnavailableError):
        client.generate("x")


def test_the_async_client_does_the_same(gateway: GatewayProcess, verify: FakeVerify) -> None:
    async def run() -> None:
        async with AsyncClient(gateway.grpc_address) as client:
            first, second = await asyncio.gather(
                client.generate("abc", max_tokens=3), client.generate(messages=CHAT, max_tokens=3)
            )
            assert (first.text, len(second.token_ids)) == ("abc", 3)
            assert [model.name for model in await client.list_models()] == ["tiny"]
            assert await client.tokenize("abc") == list(first.token_ids)
            verify.reset(step_seconds=0.05)
            async with client.stream("x", ignore_eos=True) as events:
                assert (await anext(events)).text == "x"
            with pytest.raises(InvalidArgumentError):
                await client.generate("")
            with pytest.raises(DeadlineExceededError):
                await client.generate("x", ignore_eos=True, timeout=0.2)

    asyncio.run(run())
    verify.wait_for(lambda seen: 1 <= len(seen.cancels) == len(seen.submits))


def test_the_client_needs_no_torch() -> None:
    code = "import sys; from slipstream import AsyncClient, Client; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False, cwd=Path.cwd()).returncode == 0


def test_unknown_names_are_attribute_errors() -> None:
    import slipstream

    with pytest.raises(AttributeError, match="Cleint"):
        _ = slipstream.Cleint
