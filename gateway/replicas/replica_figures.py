"""What was sent to each verify service, as Prometheus shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from gateway.replicas.replica import Replica


class ReplicaFigures(Collector):
    """Reads replicas as it is scraped, so that requests cost nothing. A service that has left has no figures."""

    def __init__(self, replicas: Callable[[], Sequence[Replica]], policy: str) -> None:
        self._replicas = replicas
        self._policy = policy

    def collect(self) -> Iterator[Metric]:
        """Figures of the moment."""
        choices = GaugeMetricFamily(
            "slipstream_gateway_replica_choices", "Choices under way at a verify service", labels=("verify",)
        )
        sent = CounterMetricFamily(
            "slipstream_gateway_routed_choices",
            "Choices sent to a verify service, and the policy that chose it",
            labels=("verify", "policy"),
        )
        tokens = CounterMetricFamily(
            "slipstream_gateway_routed_prompt_tokens",
            "Prompt tokens sent to a verify service, by whether they were taken to be cached there",
            labels=("verify", "cached"),
        )
        known = GaugeMetricFamily(
            "slipstream_gateway_known_prefixes",
            "Prefixes that a verify service says are cached",
            labels=("verify",),
        )
        gaps = CounterMetricFamily(
            "slipstream_gateway_cache_gaps",
            "Times news of a prefix cache were missing or had stopped",
            labels=("verify",),
        )
        for replica in self._replicas():
            place, load = replica.address, replica.routing
            choices.add_metric((place,), replica.load)
            sent.add_metric((place, self._policy), load.sent)
            tokens.add_metric((place, "yes"), load.hit_tokens)
            tokens.add_metric((place, "no"), load.computed_tokens)
            known.add_metric((place,), len(load.prefixes))
            gaps.add_metric((place,), load.gaps)
        yield from (choices, sent, tokens, known, gaps)
