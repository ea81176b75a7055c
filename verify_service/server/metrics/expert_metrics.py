"""Prometheus metrics of a mixture's experts."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from verify_service.core.expert_overlap import ExpertOverlap


def expert_metrics(experts: ExpertOverlap) -> Iterator[Metric]:
    """What steps without prompts' rows have woken, and what drafted nodes count as by that."""
    for field, text in (
        ("rows", "Rows of steps without prompts' rows."),
        ("awake", "Experts that these steps computed with, over all layers."),
        ("independent", "Experts that as many rows would have woken if they chose independently."),
    ):
        family = CounterMetricFamily(f"slipstream_experts_{field}", text, labels=("step",))
        for kind, counts in experts.counts.items():
            family.add_metric((kind,), getattr(counts, field))
        yield family
    text = "Rows that choose independently and wake as many experts as one drafted node."
    weights = GaugeMetricFamily("slipstream_experts_rows_of_a_node", text, labels=("node",))
    weights.add_metric(("child",), experts.child)
    weights.add_metric(("sibling",), experts.sibling)
    yield weights
