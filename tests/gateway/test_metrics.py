"""What a gateway's requests leave in its metrics, as scrapers of both formats read it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gateway.metrics import Metrics
from slipstream.generation_types import FinishReason, Usage
from slipstream.v1 import gateway_pb2, gateway_pb2_grpc
from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess

OPEN_METRICS = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"}


@pytest.fixture(scope="module")
def known_as_vllm(shared_verify: FakeVerify, tokenizer_folder: Path) -> Iterator[GatewayProcess]:
    shared_verify.reset()
    with GatewayProcess(tokenizer_folder, shared_verify.address, "--metrics-names", "vllm") as process:
        yield process


def scrape(gateway: GatewayProcess) -> dict[str, Metric]:
    answer = httpx.get(f"{gateway.http_url}/metrics", headers=OPEN_METRICS, timeout=60)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    return {family.name: family for family in text_string_to_metric_families(answer.text)}


def value(families: dict[str, Metric], family: str, suffix: str = "", **labels: str) -> float:
    return sum(
        sample.value
        for sample in families[family].samples
        if sample.name == family + suffix and labels.items() <= sample.labels.items()
    )


def test_a_request_is_counted_under_both_names(known_as_vllm: GatewayProcess) -> None:
    body = {"model": "tiny", "prompt": "a b c d", "max_tokens": 6, "n": 2, "temperature": 0.5}
    request_id = uuid.uuid4().hex
    url, headers = f"{known_as_vllm.http_url}/v1/completions", {"X-Request-Id": request_id}
    usage = httpx.post(url, json=body, headers=headers, timeout=60).raise_for_status().json()["usage"]
    families = scrape(known_as_vllm)
    ends = value(families, "slipstream_gateway_finished_choices", "_total", finished_reason="length")
    assert ends == value(families, "vllm:request_success", "_total", finished_reason="length") == 2
    tokens = value(families, "slipstream_gateway_completion_tokens", "_total")
    assert tokens == value(families, "vllm:generation_tokens", "_total") == usage["completion_tokens"]
    assert value(families, "vllm:request_params_n", "_sum") == 2
    assert value(families, "vllm:request_params_max_tokens", "_sum") == 6
    assert value(families, "vllm:request_time_per_output_token_seconds", "_count") == 2
    gaps = value(families, "vllm:inter_token_latency_seconds", "_count")
    assert gaps == value(families, "slipstream_gateway_verify_steps", "_total") - 2 > 0
    for name in ("slipstream_gateway_first_token_seconds", "vllm:time_to_first_token_seconds"):
        exemplars = [sample.exemplar for sample in families[name].samples if sample.exemplar]
        assert [exemplar.labels for exemplar in exemplars] == [{"request_id": request_id}]
    assert {sample.labels["engine"] for sample in families["vllm:prompt_tokens"].samples} == {"0"}


def test_a_call_of_the_grpc_api_has_its_id_as_exemplar(gateway: GatewayProcess, verify: FakeVerify) -> None:
    verify.reset()
    named = uuid.uuid4().hex
    with grpc.insecure_channel(gateway.grpc_address) as channel:
        request = gateway_pb2.GenerateRequest(text="a b c d")
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        list(stub.Generate(request, metadata=(("x-request-id", named),), timeout=60))
    samples = scrape(gateway)["slipstream_gateway_request_seconds"].samples
    assert {"request_id": named} in [sample.exemplar.labels for sample in samples if sample.exemplar]


def test_our_names_are_alone_unless_others_are_asked_for(gateway: GatewayProcess) -> None:
    answer = httpx.get(f"{gateway.http_url}/metrics", timeout=60)
    assert answer.headers["content-type"].startswith("text/plain")
    assert "slipstream_gateway_verify_ready" in answer.text
    assert "vllm:" not in answer.text


@pytest.mark.parametrize(("request_id", "kept"), [("a" * 118, True), ("a" * 119, False), ("", False)])
def test_an_id_becomes_an_exemplar_where_the_format_has_room_for_it(request_id: str, kept: bool) -> None:
    metrics = Metrics()
    metrics.end([Usage(1, 2, 0, 1, 0, 0)], 0.02, 0.5, request_id)
    metrics.finish([FinishReason.STOP], [None])
    text = metrics.render(OPEN_METRICS["Accept"])[0].decode()
    assert (f'# {{request_id="{request_id}"}}' in text) == kept
    assert "_time_per_output_token_seconds_count 0.0" in text
