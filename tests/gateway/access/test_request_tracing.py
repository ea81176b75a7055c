"""Spans of the gateway, as a collector receives them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest

from slipstream.rpc.errors import InternalError
from slipstream.tracing import names
from slipstream.v1 import gateway_pb2, gateway_pb2_grpc
from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess
from support.otlp_receiver import OtlpReceiver, Received

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SECRET = "zanzibar"
SERVER = 2
BODY = {"model": "tiny", "prompt": SECRET, "max_tokens": 4, "temperature": 0.5, "top_p": 0.9, "seed": 7, "stop": "zq"}


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def traced(tokenizer_folder: Path, shared_verify: FakeVerify, receiver: OtlpReceiver) -> Iterator[GatewayProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        arguments = ("--otlp-traces-endpoint", receiver.endpoint, "--trace-names", "vllm", "--log-format", "json")
        with GatewayProcess(tokenizer_folder, shared_verify.address, *arguments) as gateway:
            yield gateway


def parent(flags: str = "01") -> dict[str, str]:
    return {"traceparent": f"00-{TRACE}-{SPAN}-{flags}", "tracestate": "a=1"}


def ask(gateway: GatewayProcess, id_: str, path: str = "completions", headers=None, **changes) -> httpx.Response:
    named = {"x-request-id": id_, **(headers or {})}
    return httpx.post(f"{gateway.http_url}/v1/{path}", json=BODY | changes, headers=named, timeout=60)


def sampled(traceparent: str) -> bool:
    return bool(int(traceparent[-2:], 16) & 1)


def of_request(receiver: OtlpReceiver, id_: str) -> Received:
    (span,) = receiver.wait_for(lambda span: span.attributes.get(names.REQUEST_ID) == id_)
    return span


def test_a_request_is_one_span_under_its_callers(traced, receiver, verify: FakeVerify) -> None:
    verify.reset(tokens_per_step=2)
    reply = ask(traced, "one-1", headers=parent())
    span = of_request(receiver, "one-1")
    assert (span.service, span.name, span.kind, span.failed) == (
        "slipstream-gateway", "text_completion tiny", SERVER, False,
    )  # fmt: skip
    assert (span.trace_id, span.parent_id, span.trace_state) == (TRACE, SPAN, "a=1")
    told = dict(span.attributes)
    times = [told.pop(name) for name in list(told) if name.startswith("gen_ai.latency.")]
    assert len(times) == 6
    assert all(0 <= time < 60 for time in times)
    assert 0 < told.pop(names.RESPONSE_TIME_TO_FIRST_CHUNK) < 60
    assert told == {
        "gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "slipstream", "gen_ai.output.type": "text",
        "gen_ai.request.model": "tiny", "gen_ai.response.model": "tiny", "gen_ai.response.id": reply.json()["id"],
        "gen_ai.request.stream": False, "gen_ai.request.max_tokens": 4, "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9, "gen_ai.request.seed": 7, "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.input_tokens": 6, "gen_ai.usage.output_tokens": 4, "gen_ai.usage.cache_read.input_tokens": 3,
        "server.address": "127.0.0.1", "server.port": int(traced.http_url.rpartition(":")[2]),
        "http.response.status_code": 200, "slipstream.request_id": "one-1", "slipstream.verify_steps": 2,
        "slipstream.speculation.drafted_tokens": 8, "slipstream.speculation.accepted_tokens": 2,
        "slipstream.speculation.mean_accepted_length": 2.0, "slipstream.speculation.proposers": ["ngram"],
        "slipstream.resumes": 0, "slipstream.replica": verify.address, "slipstream.fingerprint": verify.fingerprint,
        "slipstream.exact": True,
        "gen_ai.request.id": "one-1", "gen_ai.request.n": 1, "gen_ai.usage.prompt_tokens": 6,
        "gen_ai.usage.completion_tokens": 4,
    }  # fmt: skip
    assert span.event_names() == ["queued", "first_token"]
    assert span.begun <= span.events[0][1] < span.events[1][1] < span.ended
    (submit,) = verify.seen.submits
    assert submit.context.traceparent == f"00-{TRACE}-{span.span_id}-01"
    assert submit.context.tracestate == "a=1"
    assert SECRET not in repr(receiver.spans)
    (line,) = [line for line in traced.logs.splitlines() if '"one-1"' in line]
    assert json.loads(line)["trace_id"] == TRACE


def test_a_stream_that_is_resumed_says_so_and_stays_in_its_trace(traced, receiver, verify: FakeVerify) -> None:
    verify.reset(breaks=[3])
    chat = {"messages": [{"role": "user", "content": SECRET}], "prompt": None}
    ask(traced, "two-1", "chat/completions", stream=True, **chat)
    span = of_request(receiver, "two-1")
    assert span.name == "chat tiny"
    assert not span.parent_id
    assert span.attributes[names.REQUEST_STREAM] is True
    assert span.attributes[names.RESUMES] == 1
    (resumed,) = [told for name, _, told in span.events if name == "resumed"]
    assert resumed == {
        names.CHOICE: 0, names.RESUMED_FROM: verify.address, names.RESUMED_TO: verify.address,
        names.RESUMED_POSITION: 3,
    }  # fmt: skip
    assert len(verify.seen.submits) == 2
    (told,) = {submit.context.traceparent for submit in verify.seen.submits}
    assert told.startswith(f"00-{span.trace_id}-{span.span_id}-")


def test_choices_are_one_span(traced, receiver, verify: FakeVerify) -> None:
    verify.reset()
    ask(traced, "three-1", n=3)
    span = of_request(receiver, "three-1")
    assert span.attributes[names.REQUEST_CHOICES] == 3
    assert span.attributes["gen_ai.usage.output_tokens"] == 12
    assert span.attributes["gen_ai.response.finish_reasons"] == ["length"] * 3
    assert len({submit.context.traceparent for submit in verify.seen.submits}) == 1


def test_a_call_of_the_grpc_api_is_one_too(traced, receiver, verify: FakeVerify) -> None:
    verify.reset()
    with grpc.insecure_channel(traced.grpc_address) as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        request = gateway_pb2.GenerateRequest(chat={"messages": [{"role": "user", "content": SECRET}]})
        request.sampling.max_tokens = 2
        list(stub.Generate(request, metadata=(("x-request-id", "rpc-1"), *parent().items()), timeout=60))
        request.sampling.max_tokens = 0
        with pytest.raises(grpc.RpcError):
            list(stub.Generate(request, metadata=(("x-request-id", "rpc-2"),), timeout=60))
    span, refused = of_request(receiver, "rpc-1"), of_request(receiver, "rpc-2")
    assert (span.name, span.parent_id, span.kind) == ("chat tiny", SPAN, SERVER)
    assert span.attributes[names.RPC_STATUS] == "OK"
    assert (refused.attributes[names.RPC_STATUS], refused.attributes[names.ERROR_TYPE]) == (
        "INVALID_ARGUMENT", "invalid_request_error",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "status", "kind"),
    [({"max_tokens": 0}, 400, "invalid_request_error"), ({"model": SECRET}, 404, "not_found_error")],
)
def test_a_refusal_is_no_fault_of_the_service(traced, receiver, verify: FakeVerify, changes, status, kind) -> None:
    assert ask(traced, f"refused-{status}", **changes).status_code == status
    span = of_request(receiver, f"refused-{status}")
    assert (span.name, span.failed) == ("text_completion", False)
    assert (span.attributes[names.HTTP_STATUS], span.attributes[names.ERROR_TYPE]) == (status, kind)
    assert SECRET not in repr(span)


def test_a_failure_is_one(traced, receiver, verify: FakeVerify) -> None:
    verify.reset(error=InternalError(SECRET))
    assert ask(traced, "failed-1").status_code == 500
    span = of_request(receiver, "failed-1")
    assert span.failed
    assert span.attributes[names.ERROR_TYPE] == "internal_error"
    assert SECRET not in repr(span)


def test_what_its_caller_does_not_sample_is_left_out_and_so_it_is_further_on(traced, receiver, verify) -> None:
    verify.reset()
    ask(traced, "unsampled-1", headers=parent("00"))
    ask(traced, "sampled-1")
    of_request(receiver, "sampled-1")
    assert not [span for span in receiver.spans if span.attributes.get(names.REQUEST_ID) == "unsampled-1"]
    unsampled, other = (submit.context.traceparent for submit in verify.seen.submits)
    assert unsampled.startswith(f"00-{TRACE}-") and not sampled(unsampled)
    assert sampled(other)
    (line,) = [line for line in traced.logs.splitlines() if '"unsampled-1"' in line]
    assert "trace_id" not in json.loads(line)


def test_the_environment_alone_asks_for_it_and_a_collector_that_is_away_holds_up_nobody(
    tokenizer_folder: Path, shared_verify: FakeVerify, verify: FakeVerify, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify.reset()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "1.0")
    with GatewayProcess(tokenizer_folder, shared_verify.address) as gateway:
        assert ask(gateway, "away-1").status_code == 200
        assert "requests are traced by otlp" in gateway.logs
    assert gateway.process.returncode == 0
    (submit,) = verify.seen.submits
    assert sampled(submit.context.traceparent)
