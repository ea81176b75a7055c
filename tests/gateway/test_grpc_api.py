"""The public gRPC API, spoken with generated stubs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from slipstream.rpc.channel import from_rpc_error, open_sync_channel
from slipstream.rpc.errors import InvalidArgumentError
from slipstream.v1 import gateway_pb2, gateway_pb2_grpc, sampling_pb2
from support.fake_verify import EOS_ID, FakeVerify
from support.gateway_process import GatewayProcess


@pytest.fixture
def channel(gateway: GatewayProcess) -> Iterator[grpc.Channel]:
    with open_sync_channel(gateway.grpc_address) as channel:
        yield channel


@pytest.fixture
def stub(channel: grpc.Channel) -> Any:
    return gateway_pb2_grpc.GatewayServiceStub(channel)


def test_generate_streams_one_message_a_step(stub: Any, verify: FakeVerify) -> None:
    verify.reset(tokens_per_step=4)
    request = gateway_pb2.GenerateRequest(
        text="Hello é 東京!", sampling={"max_tokens": 10, "seed": 5, "logprobs": 1}, tenant="red"
    )
    messages = list(stub.Generate(request))
    assert [len(message.token_ids) for message in messages] == [4, 4, 2]
    assert "".join(message.text for message in messages) == "Hello é 東\ufffd"
    assert [message.HasField("seed") for message in messages] == [True, False, False]
    assert messages[0].seed == 5
    source = sampling_pb2.SourceCount(proposer="member", drafted=4, accepted=3)
    assert messages[0].step == sampling_pb2.SpeculationStep(drafted=4, accepted=3, proposer="ngram", sources=[source])
    assert [len(message.logprobs) for message in messages] == [4, 4, 2]
    assert messages[0].logprobs[0].top[0].token_id == 10
    assert messages[-1].finish_reason == sampling_pb2.FINISH_REASON_LENGTH
    assert messages[-1].usage == sampling_pb2.Usage(
        prompt_tokens=12, completion_tokens=10, cached_tokens=3, verify_steps=3, drafted_tokens=12, accepted_tokens=7
    )
    assert messages[-1].timings.total == 0.25
    assert (verify.seen.submits[0].tenant, verify.seen.submits[0].adapter_id) == ("red", "")


def test_chat_and_token_ids_are_prompts_too(stub: Any, verify: FakeVerify) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    messages = list(stub.Generate(gateway_pb2.GenerateRequest(chat=chat)))
    assert messages[-1].stop_token_id == EOS_ID
    ids = stub.Tokenize(gateway_pb2.TokenizeRequest(chat=chat)).token_ids
    assert list(verify.seen.submits[0].prompt_token_ids) == list(ids)
    again = list(stub.Generate(gateway_pb2.GenerateRequest(token_ids={"ids": ids})))
    assert [list(message.token_ids) for message in again] == [list(message.token_ids) for message in messages]


def test_a_stop_string_is_reported(stub: Any) -> None:
    messages = list(stub.Generate(gateway_pb2.GenerateRequest(text="one two", stop=["tw"])))
    assert "".join(message.text for message in messages) == "one "
    assert messages[-1].stop_string == "tw"
    assert messages[-1].finish_reason == sampling_pb2.FINISH_REASON_STOP
    assert messages[-1].HasField("timings")


def test_list_models(stub: Any) -> None:
    (model,) = stub.ListModels(gateway_pb2.ListModelsRequest()).models
    assert (model.name, model.max_context, list(model.proposers), model.default_proposer) == (
        "tiny", 512, ["ngram"], "ngram"
    )  # fmt: skip


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({}, "prompt", "must be set"),
    ({"text": ""}, "text", "empty"),
    ({"token_ids": {}}, "token_ids", "empty"),
    ({"token_ids": {"ids": [512]}}, "token_ids", "below 512"),
    ({"chat": {}}, "chat.messages", "empty"),
    ({"chat": {"messages": [{"role": "tool", "content": "x"}]}}, "chat.messages", "Unknown role"),
    ({"chat": {"messages": [{"role": "user"}] * 512}}, "chat.messages", "chat.messages has 512 entries"),
    ({"text": "x" * 9000}, "text", "512"),
    ({"text": "x", "sampling": {"max_tokens": 512}}, "sampling.max_tokens", "513 together"),
    ({"text": "x", "sampling": {"temperature": -0.5}}, "sampling.temperature", "0 or from 1e-05 to 2, got -0.5"),
    ({"text": "x", "sampling": {"temperature": 1e-40}}, "sampling.temperature", "0 or from 1e-05 to 2"),
    ({"text": "x", "sampling": {"repetition_penalty": 1e-40}}, "sampling.repetition_penalty", "from 0.01 to 2"),
    ({"text": "x", "sampling": {"temperature": float("nan")}}, "sampling.temperature", "nan"),
    ({"text": "x", "sampling": {"top_p": 0}}, "sampling.top_p", "greater than 0 and at most 1"),
    ({"text": "x", "sampling": {"top_k": 2**31}}, "sampling.top_k", "from 0 to 2147483647"),
    ({"text": "x", "sampling": {"min_p": 1.5}}, "sampling.min_p", "from 0 to 1, got 1.5"),
    ({"text": "x", "sampling": {"repetition_penalty": 0}}, "sampling.repetition_penalty", "from 0.01 to 2"),
    ({"text": "x", "sampling": {"presence_penalty": 2.5}}, "sampling.presence_penalty", "from -2 to 2"),
    ({"text": "x", "sampling": {"frequency_penalty": -2.5}}, "sampling.frequency_penalty", "from -2 to 2"),
    ({"text": "x", "sampling": {"max_tokens": 3, "min_tokens": 4}}, "sampling.min_tokens", "at most max_tokens"),
    ({"text": "x", "sampling": {"logprobs": 21}}, "sampling.logprobs", "from 0 to 20"),
    ({"text": "x", "sampling": {"logit_bias": {600: 1}}}, "sampling.logit_bias", "below 512"),
    ({"text": "x", "sampling": {"logit_bias": {6: 101}}}, "sampling.logit_bias.6", "from -100 to 100"),
    ({"text": "x", "sampling": {"stop_token_ids": [1] * 129}}, "sampling.stop_token_ids", "at most 128"),
    ({"text": "x", "stop": ["y"] * 17}, "stop", "at most 16"),
    ({"text": "x", "stop": [""]}, "stop", "1 to 256 characters"),
    ({"text": "x", "speculation": {"max_nodes": 65}}, "speculation.max_nodes", "from 1 to 64"),
    ({"text": "x", "speculation": {"max_depth": 64}}, "speculation.max_depth", "from 0 to 63"),
    ({"text": "x", "speculation": {"proposer": "nobody"}}, "speculation.proposer", "neither configured nor attached"),
    ({"text": "x", "tenant": "x" * 257}, "tenant", "256 bytes"),
]


@pytest.mark.parametrize(("fields", "field", "words"), BAD)
def test_a_bad_field_is_named_with_its_limit(stub: Any, fields: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.Generate(gateway_pb2.GenerateRequest(**fields)))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    error = from_rpc_error(caught.value)
    assert error.field == field
    assert words in error.message


@pytest.mark.parametrize(
    ("prompt", "refused", "named"),
    [
        ({"text": "x"}, "prompt_token_ids", "text"),
        ({"token_ids": {"ids": [5]}}, "prompt_token_ids", "token_ids"),
        ({"chat": {"messages": [{"role": "user"}]}}, "prompt_token_ids", "chat.messages"),
        ({"text": "x"}, "max_tokens", "sampling.max_tokens"),
        ({"text": "x"}, "tenant", "tenant"),
    ],
)
def test_fields_that_verify_refuses_have_the_names_of_the_api(
    stub: Any, verify: FakeVerify, prompt: dict[str, Any], refused: str, named: str
) -> None:
    verify.reset(error=InvalidArgumentError("too long", field=refused))
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.Generate(gateway_pb2.GenerateRequest(**prompt)))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert from_rpc_error(caught.value).field == named


def raw_call(channel: grpc.Channel, method: str, data: bytes) -> bytes:
    path = f"/slipstream.v1.GatewayService/{method}"
    if method == "Generate":
        return b"".join(channel.unary_stream(path)(data, timeout=60))
    answer: bytes = channel.unary_unary(path)(data, timeout=60)
    return answer


GOOD = gateway_pb2.GenerateRequest(text="x", sampling={"max_tokens": 1})


@pytest.mark.parametrize(
    ("method", "data", "words"),
    [
        ("Generate", b"\xff\xff\xff", "no valid GenerateRequest"),
        ("Generate", b"\x12\x02\xff\xfe", "UTF-8"),
        ("Tokenize", b"\xff\xff\xff", "no valid TokenizeRequest"),
        ("Tokenize", b"\x12\x02\xff\xfe", "UTF-8"),
        ("ListModels", b"\xff\xff\xff", "no valid ListModelsRequest"),
    ],
)
def test_bytes_that_are_no_message_are_refused(
    channel: grpc.Channel, stub: Any, method: str, data: bytes, words: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        raw_call(channel, method, data)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    error = from_rpc_error(caught.value)
    assert (error.field, words in error.message) == ("", True), error.message
    assert list(stub.Generate(GOOD))[-1].text == "x"


def test_fields_that_a_request_does_not_have_are_ignored(channel: grpc.Channel) -> None:
    assert b"tiny" in raw_call(channel, "ListModels", b"\x12\x02\xff\xfe")


@pytest.mark.parametrize(
    "fields",
    [
        {"text": "x" * 10_000_000},
        {"token_ids": {"ids": b"\x01" * 10_000_000}},
        {"chat": {"messages": [{"role": "user", "content": "x" * 100_000}] * 100}},
    ],
    ids=["text", "token_ids", "chat"],
)
def test_a_request_of_ten_megabytes_is_refused(stub: Any, fields: dict[str, Any]) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.Generate(gateway_pb2.GenerateRequest(**fields)))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "the limit is 1048576 bytes" in from_rpc_error(caught.value).message
    assert list(stub.Generate(GOOD))[-1].text == "x"


def test_grpc_itself_refuses_what_is_beyond_16_mib(gateway: GatewayProcess, stub: Any) -> None:
    with (
        grpc.insecure_channel(gateway.grpc_address, [("grpc.max_send_message_length", -1)]) as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        raw_call(channel, "Generate", b"\x12" * (16 * 1024 * 1024 + 1))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert list(stub.Generate(GOOD))[-1].text == "x"


def test_unknown_model(stub: Any) -> None:
    for call in (
        lambda: list(stub.Generate(gateway_pb2.GenerateRequest(model="x", text="x"))),
        lambda: stub.Tokenize(gateway_pb2.TokenizeRequest(model="x", text="x")),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_cancel_and_deadline_reach_the_verify_service(stub: Any, verify: FakeVerify, how: str) -> None:
    verify.reset(step_seconds=0.05)
    request = gateway_pb2.GenerateRequest(text="x", sampling={"ignore_eos": True})
    call = stub.Generate(request, timeout=2.0 if how == "deadline" else None)
    next(call)
    if how == "cancel":
        call.cancel()
    with pytest.raises(grpc.RpcError):
        list(call)
    verify.wait_for(lambda seen: len(seen.cancels) == 1)


def test_a_lost_verify_service_is_not_ready_until_it_comes_back(
    gateway: GatewayProcess, stub: Any, channel: grpc.Channel, verify: FakeVerify
) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    states = health_pb2.HealthCheckResponse

    def wait_health(status: int) -> None:
        verify.wait_for(lambda _: health.Check(health_pb2.HealthCheckRequest()).status == status)

    verify.stop()
    gateway.wait_ready(ready=False)
    wait_health(states.NOT_SERVING)
    verify.start()
    gateway.wait_ready()
    wait_health(states.SERVING)
    assert list(stub.Generate(gateway_pb2.GenerateRequest(text="x", sampling={"max_tokens": 1})))


def test_reflection_names_the_service(channel: grpc.Channel) -> None:
    assert "slipstream.v1.GatewayService" in ProtoReflectionDescriptorDatabase(channel).get_services()
