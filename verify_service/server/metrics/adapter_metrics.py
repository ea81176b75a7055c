"""Metrics of LoRA adapters: which are loaded, and which requests use them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from verify_service.core.adapters import AdapterState


def adapter_metrics(adapters: Sequence[AdapterState], slots: int) -> Iterator[Metric]:
    """Of all adapters that have one of the `slots`. Series of an adapter end when it has gone."""
    yield GaugeMetricFamily("slipstream_adapter_slots", "LoRA adapters that can be loaded at a time.", value=slots)
    loaded = sum(not state.leaving for state in adapters)
    yield GaugeMetricFamily("slipstream_adapters", "LoRA adapters that requests may name.", value=loaded)
    yield _lora_requests(adapters, slots)
    labels = [(state.adapter.name, state.adapter.id) for state in adapters]
    for field, text in (
        ("running", "Requests in the batch that use the adapter."),
        ("waiting", "Requests that use the adapter and are not in the batch."),
    ):
        gauge = GaugeMetricFamily(f"slipstream_adapter_requests_{field}", text, labels=("adapter", "id"))
        for state, label in zip(adapters, labels, strict=True):
            gauge.add_metric(label, getattr(state, field))
        yield gauge
    admitted = CounterMetricFamily(
        "slipstream_adapter_requests", "Requests taken in that use the adapter.", labels=("adapter", "id")
    )
    for state, label in zip(adapters, labels, strict=True):
        admitted.add_metric(label, state.requests)
    yield admitted


def _lora_requests(adapters: Sequence[AdapterState], slots: int) -> Metric:
    """Names in labels, and the time as the value, by which readers know the latest of several series."""
    family = GaugeMetricFamily(
        "slipstream_lora_requests_info",
        "When it was that requests ran and waited with these LoRA adapters.",
        labels=("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
    )
    running = ",".join(state.adapter.name for state in adapters if state.running)
    waiting = ",".join(state.adapter.name for state in adapters if state.waiting)
    family.add_metric((str(slots), running, waiting), time.time())
    return family
