"""Prometheus metrics of the draft service, read from the worker's counters when scraped."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from draft_service.verify_link.verify_link import VerifyLink
from draft_service.worker.worker import Worker


class WorkerCollector(Collector):
    """Reports what the worker and the link count anyway."""

    def __init__(self, worker: Worker, link: VerifyLink) -> None:
        self._worker = worker
        self._link = link

    def collect(self) -> Iterable[Metric]:
        stats = self._worker.stats
        yield GaugeMetricFamily("slipstream_draft_attached", "1 while attached", float(self._link.epoch is not None))
        yield GaugeMetricFamily("slipstream_draft_sessions", "Requests drafted for", float(stats.sessions))
        yield CounterMetricFamily("slipstream_draft_trees", "Trees sent", float(stats.trees_sent))
        yield CounterMetricFamily("slipstream_draft_nodes", "Drafted tokens sent", float(stats.nodes_sent))
        yield CounterMetricFamily(
            "slipstream_draft_superseded",
            "Trees of states that had passed when they were made",
            float(stats.superseded),
        )
        yield CounterMetricFamily(
            "slipstream_draft_partial_sessions",
            "Sessions begun without older states that their proposer wanted",
            float(stats.partial),
        )
        yield CounterMetricFamily("slipstream_draft_failures", "Failures of proposers", float(stats.failures))


def make_registry(worker: Worker, link: VerifyLink) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(WorkerCollector(worker, link))
    return registry
