"""docs/metrics.md names every metric of every service, with its kind, and none that there is not."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from prometheus_client import CollectorRegistry

from draft_service.server.metrics import make_registry
from draft_service.verify_link.verify_link import VerifyLink
from draft_service.worker.worker import Worker
from gateway.metrics import Metrics
from gateway.replicas.replica_figures import ReplicaFigures
from slipstream.rpc.vllm_metrics import GATEWAY_NAMES, VERIFY_NAMES
from support.metrics_states import DRAFTER, LOOP
from verify_service.draft_link.link_state import LinkState
from verify_service.server.metrics.verify_metrics import VerifyMetrics

PAGE = Path(__file__).parent.parent.parent / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(slipstream_\w+)` \| (\w+) \|", re.MULTILINE)
VLLM_ROW = re.compile(r"^\| `(vllm:\w+)` \| (\w+) \| `(\w+)` \|", re.MULTILINE)


def offered(registry: CollectorRegistry) -> dict[str, str]:
    """Names as they are scraped, with their kinds."""
    return {family.name + ("_total" if family.type == "counter" else ""): family.type for family in registry.collect()}


def gateway() -> dict[str, str]:
    metrics = Metrics()
    metrics.registry.register(ReplicaFigures(list, "prefix"))
    return offered(metrics.registry)


def verify() -> dict[str, str]:
    registry = CollectorRegistry()
    metrics = VerifyMetrics(registry)
    metrics.watch(lambda: LOOP, lambda: LinkState(1, 2, 3, 4, 5, 6, 0.25, (DRAFTER,)), adapter_slots=4)
    metrics.cache_config("bfloat16", 16, 100)
    return offered(registry)


def draft() -> dict[str, str]:
    worker = Worker([])
    try:
        return offered(make_registry(worker, cast(VerifyLink, SimpleNamespace(epoch=1))))
    finally:
        worker.stop()


def test_all_are_documented_with_their_kind() -> None:
    told = dict(ROW.findall(PAGE.read_text()))
    assert told == gateway() | verify() | draft()


def test_vllm_names_are_told_with_their_service_and_source() -> None:
    kinds = {"gateway": gateway(), "verify": verify()}
    expected = set()
    for service, names in (("gateway", GATEWAY_NAMES), ("verify", VERIFY_NAMES)):
        for own, theirs in names.items():
            suffix = "_total" if f"{own}_total" in kinds[service] else ""
            assert own + suffix in kinds[service]
            expected.add((theirs + suffix, service, own + suffix))
    assert set(VLLM_ROW.findall(PAGE.read_text())) == expected
