"""What is observed appears under the documented names."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from slipstream.generation_types import FinishReason, SpeculationStep, Timings, Usage
from slipstream.rpc.errors import ResourceExhaustedError
from support.metrics_states import DRAFTER, LOOP
from verify_service.core.request import RequestKey, StepOutput
from verify_service.draft_link.link_state import LinkState
from verify_service.server.metrics.verify_metrics import VerifyMetrics


def test_steps_and_ends_are_counted() -> None:
    registry = CollectorRegistry()
    metrics = VerifyMetrics(registry)
    metrics.watch(lambda: LOOP, lambda: LinkState(1, 2, 3, 4, 5, 6, 0.25, (DRAFTER,), refused=7))
    metrics.draft_wait(0.002)
    key = RequestKey(1, 1)
    last = StepOutput(
        key,
        (1, 2, 3),
        step=SpeculationStep(3, 2, "ngram"),
        finish_reason=FinishReason.LENGTH,
        usage=Usage(8, 5, 0, 2, 4, 3),
        timings=Timings(0.1, 0.2, 1.0),
    )
    refused = StepOutput(key, finish_reason=FinishReason.ERROR, error=ResourceExhaustedError("full"))
    metrics.step([StepOutput(key, (4, 5), step=SpeculationStep(1, 1, "ngram")), last, refused])
    metrics.step([])

    expected = {
        "num_requests_running": 2,
        "num_requests_waiting": 3,
        "kv_cache_usage_perc": 0.5,
        "generation_tokens_total": 30,
        "spec_decode_num_draft_tokens_total": 20,
        "spec_decode_num_accepted_tokens_total": 11,
        "prefix_cache_hits_total": 16,
        "prefix_cache_queries_total": 30,
        "spec_decode_num_drafts_total": 2,
        "step_rows_sum": 3,
        "step_rows_count": 1,
        "step_seconds_sum": 0.75,
        "num_preemptions_total": 1,
        "draft_misses_total": 3,
        "draft_stale_records_total": 4,
        "draft_malformed_records_total": 5,
        "draft_gaps_total": 6,
        "draft_deadline_seconds": 0.25,
        "draft_refused_proposers": 7,
        "draft_wait_seconds_count": 1,
        "step_tokens_sum": 5,
        "step_batch_size_count": 1,
        "prompt_tokens_total": 8,
        "request_generation_tokens_sum": 5,
        "time_to_first_token_seconds_sum": 0.2,
        "time_per_output_token_seconds_sum": 0.2,
        "e2e_request_latency_seconds_sum": 1.0,
        "request_queue_time_seconds_sum": 0.1,
        "request_prefill_time_seconds_sum": 0.1,
        "request_decode_time_seconds_sum": 0.8,
        "request_inference_time_seconds_sum": 0.9,
    }
    found = {name: registry.get_sample_value(f"slipstream_{name}") for name in expected}
    assert found == expected
    positions = [
        registry.get_sample_value("slipstream_spec_decode_num_accepted_tokens_per_pos_total", {"position": position})
        for position in "012"
    ]
    assert positions == [2, 1, None]
    grammars = [
        registry.get_sample_value("slipstream_grammar_seconds_total", {"part": part})
        for part in ("drafts", "checks", "masks")
    ]
    assert grammars == [1.0, 2.0, 3.0]
    labels = {"epoch": "77", "drafter": "d", "proposer": "ngram", "transport": "shm"}
    names = (
        "requests",
        "share",
        "catching_up",
        "hits_total",
        "waits_total",
        "misses_total",
        "late_total",
        "drafted_total",
        "accepted_total",
        "handed_total",
        "unmade_total",
        "partial_sessions_total",
        "answer_seconds",
        "deadline_seconds",
    )
    values = [registry.get_sample_value(f"slipstream_drafter_{name}", labels) for name in names]
    assert values == [9, 0.5, 8, 1, 6, 2, 3, 40, 30, 12, 13, 10, 0.06, 0.09]
    whole = {name: labels[name] for name in ("epoch", "drafter", "transport")}
    assert registry.get_sample_value("slipstream_drafter_stale_records_total", whole) == 7
    shared = {
        (source, name): registry.get_sample_value(
            f"slipstream_drafter_source_{name}_total", labels | {"source": source}
        )
        for source in "ab"
        for name in ("drafted", "accepted")
    }
    assert shared == {("a", "drafted"): 25, ("a", "accepted"): 20, ("b", "drafted"): 15, ("b", "accepted"): 10}
    ends = {
        reason: registry.get_sample_value("slipstream_request_success_total", {"finished_reason": reason})
        for reason in ("length", "error")
    }
    assert ends == {"length": 1, "error": 1}
    assert b"slipstream_request_success_total" in generate_latest(registry)
