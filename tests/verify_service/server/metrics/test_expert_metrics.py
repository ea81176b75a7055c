from __future__ import annotations

from dataclasses import replace

from prometheus_client import CollectorRegistry

from support.metrics_states import EXPERTS, LOOP
from verify_service.core.expert_overlap import ExpertOverlap
from verify_service.draft_link.link_state import LinkState
from verify_service.server.metrics.verify_metrics import VerifyMetrics


def published(experts: ExpertOverlap | None) -> CollectorRegistry:
    registry = CollectorRegistry()
    loop = replace(LOOP, experts=experts)
    VerifyMetrics(registry).watch(lambda: loop, lambda: LinkState(0, 0, 0, 0, 0, 0, 0.0, ()))
    return registry


def test_what_steps_wake_is_told_by_kind_of_step() -> None:
    known = EXPERTS
    registry = published(known)

    def told(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"slipstream_experts_{name}", labels)

    assert [told(f"{name}_total", step="plain") for name in ("rows", "awake", "independent")] == [1, 4, 4]
    assert [told(f"{name}_total", step="drafted") for name in ("rows", "awake")] == [3, 7]
    assert told("independent_total", step="drafted") == known.independent(3)
    assert (told("rows_of_a_node", node="child"), told("rows_of_a_node", node="sibling")) == (known.child, 1)


def test_a_model_without_experts_tells_nothing() -> None:
    assert not [metric.name for metric in published(None).collect() if "experts" in metric.name]
