"""Metrics under the names by which dashboards, autoscalers and benchmark scripts know vLLM's.

Each of vLLM's names comes from one service, so that sums over gateway and verify service count nothing twice. What runs
in the engine comes from the verify service; what a client sees of its request comes from the gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

MetricNames = Literal["slipstream", "vllm"]
"""Which names a service publishes: ours alone, or vLLM's beside ours."""

GATEWAY_NAMES: Final[Mapping[str, str]] = {
    "slipstream_gateway_first_token_seconds": "vllm:time_to_first_token_seconds",
    "slipstream_gateway_inter_token_seconds": "vllm:inter_token_latency_seconds",
    "slipstream_gateway_time_per_output_token_seconds": "vllm:request_time_per_output_token_seconds",
    "slipstream_gateway_request_seconds": "vllm:e2e_request_latency_seconds",
    "slipstream_gateway_finished_choices": "vllm:request_success",
    "slipstream_gateway_prompt_tokens": "vllm:prompt_tokens",
    "slipstream_gateway_cached_prompt_tokens": "vllm:prompt_tokens_cached",
    "slipstream_gateway_completion_tokens": "vllm:generation_tokens",
    "slipstream_gateway_drafts": "vllm:spec_decode_num_drafts",
    "slipstream_gateway_drafted_tokens": "vllm:spec_decode_num_draft_tokens",
    "slipstream_gateway_accepted_tokens": "vllm:spec_decode_num_accepted_tokens",
    "slipstream_gateway_accepted_tokens_per_position": "vllm:spec_decode_num_accepted_tokens_per_pos",
    "slipstream_gateway_request_choices": "vllm:request_params_n",
    "slipstream_gateway_request_max_tokens": "vllm:request_params_max_tokens",
}

VERIFY_NAMES: Final[Mapping[str, str]] = {
    "slipstream_num_requests_running": "vllm:num_requests_running",
    "slipstream_num_requests_waiting": "vllm:num_requests_waiting",
    "slipstream_kv_cache_usage_perc": "vllm:kv_cache_usage_perc",
    "slipstream_num_preemptions": "vllm:num_preemptions",
    "slipstream_prefix_cache_queries": "vllm:prefix_cache_queries",
    "slipstream_prefix_cache_hits": "vllm:prefix_cache_hits",
    "slipstream_request_queue_time_seconds": "vllm:request_queue_time_seconds",
    "slipstream_request_prefill_time_seconds": "vllm:request_prefill_time_seconds",
    "slipstream_request_decode_time_seconds": "vllm:request_decode_time_seconds",
    "slipstream_request_inference_time_seconds": "vllm:request_inference_time_seconds",
    "slipstream_request_prompt_tokens": "vllm:request_prompt_tokens",
    "slipstream_request_generation_tokens": "vllm:request_generation_tokens",
    "slipstream_step_rows": "vllm:iteration_tokens_total",
    "slipstream_lora_requests_info": "vllm:lora_requests_info",
}

_FINISHED: Final = "finished_reason"
_REASONS: Final[Mapping[str, str]] = {"cancelled": "abort"}
_ENGINE: Final = "0"
"""A verify service is one engine; which one, the scraper's label `instance` tells."""


def with_vllm_names(
    source: CollectorRegistry, names: Mapping[str, str], model_name: Callable[[], str]
) -> CollectorRegistry:
    """All metrics of `source`, and those of `names` under vLLM's names as well.

    `model_name` gives the label of that name; as long as it is empty there are none of vLLM's names.
    """
    both = CollectorRegistry()
    both.register(source)
    both.register(_VllmView(source, names, model_name))
    return both


class _VllmView(Collector):
    """Families of `source` under other names, with vLLM's labels."""

    def __init__(self, source: CollectorRegistry, names: Mapping[str, str], model_name: Callable[[], str]) -> None:
        self._source = source
        self._names = names
        self._model_name = model_name

    def collect(self) -> Iterator[Metric]:
        if not (model := self._model_name()):
            return
        labels = {"model_name": model, "engine": _ENGINE}
        for family in self._source.collect():
            if (name := self._names.get(family.name)) is not None:
                yield _renamed(family, name, labels)


def _renamed(family: Metric, name: str, labels: Mapping[str, str]) -> Metric:
    made = Metric(name, family.documentation, family.type)
    for sample in family.samples:
        own = dict(sample.labels)
        if _FINISHED in own:
            own[_FINISHED] = _REASONS.get(own[_FINISHED], own[_FINISHED])
        suffix = sample.name.removeprefix(family.name)
        made.samples.append(Sample(name + suffix, {**labels, **own}, sample.value, sample.timestamp, sample.exemplar))
    return made
