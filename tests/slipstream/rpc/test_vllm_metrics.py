"""vLLM's names stand beside ours, with vLLM's labels, in both exposition formats."""

from __future__ import annotations

import urllib.request

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.openmetrics import parser

from slipstream.rpc.metrics import serve_metrics
from slipstream.rpc.vllm_metrics import GATEWAY_NAMES, VERIFY_NAMES, with_vllm_names

LABELS = {"model_name": "m", "engine": "0"}


def registry() -> CollectorRegistry:
    own = CollectorRegistry()
    Gauge("slipstream_num_requests_running", "Running.", registry=own).set(3)
    Counter("slipstream_num_preemptions", "Preempted.", registry=own).inc(2)
    ends = Counter("slipstream_gateway_finished_choices", "Ends.", ["finished_reason"], registry=own)
    ends.labels("cancelled").inc()
    ends.labels("stop").inc(4)
    times = Histogram("slipstream_gateway_first_token_seconds", "TTFT.", buckets=(1, 2), registry=own)
    times.observe(1.5, {"request_id": "r"})
    Gauge("slipstream_tenants", "Has no counterpart.", registry=own).set(1)
    return own


def test_samples_keep_their_values() -> None:
    both = with_vllm_names(registry(), GATEWAY_NAMES | VERIFY_NAMES, lambda: "m")
    assert both.get_sample_value("slipstream_num_requests_running") == 3
    assert both.get_sample_value("vllm:num_requests_running", LABELS) == 3
    assert both.get_sample_value("vllm:num_preemptions_total", LABELS) == 2
    assert both.get_sample_value("vllm:time_to_first_token_seconds_bucket", LABELS | {"le": "2.0"}) == 1
    assert both.get_sample_value("vllm:time_to_first_token_seconds_sum", LABELS) == 1.5
    for reason, count in (("abort", 1), ("stop", 4), ("cancelled", None)):
        assert both.get_sample_value("vllm:request_success_total", LABELS | {"finished_reason": reason}) == count
    assert b"vllm:tenants" not in generate_latest(both)


def test_there_are_none_before_the_model_is_known() -> None:
    name = ""
    both = with_vllm_names(registry(), VERIFY_NAMES, lambda: name)
    assert b"vllm:" not in generate_latest(both)
    name = "m"
    assert b"vllm:" in generate_latest(both)


@pytest.mark.parametrize(
    "version", ["", ";version=1.0.0", ";version=1.0.0;escaping=underscores;q=0.6,text/plain;q=0.1"]
)
def test_open_metrics_is_well_formed_and_keeps_names_and_exemplars(version: str) -> None:
    endpoint = serve_metrics(0, with_vllm_names(registry(), GATEWAY_NAMES | VERIFY_NAMES, lambda: "m"))
    url, headers = f"http://127.0.0.1:{endpoint.port}/metrics", {"Accept": f"application/openmetrics-text{version}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as reply:
            families = {each.name: each for each in parser.text_string_to_metric_families(reply.read().decode())}
    finally:
        endpoint.close()
    exemplars = [each.exemplar for each in families["vllm:time_to_first_token_seconds"].samples if each.exemplar]
    assert [(each.labels, each.value) for each in exemplars] == [({"request_id": "r"}, 1.5)]
    assert {each.name for each in families["vllm:num_preemptions"].samples} >= {"vllm:num_preemptions_total"}


def test_no_name_comes_from_two_services() -> None:
    assert not set(GATEWAY_NAMES.values()) & set(VERIFY_NAMES.values())
    for names in (GATEWAY_NAMES, VERIFY_NAMES):
        assert len(set(names.values())) == len(names)
