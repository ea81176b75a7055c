"""What the gateway counts once a verify step, in plain numbers; read when scraped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from slipstream.bucket_counts import BucketCounts, PositionCounts
from slipstream.generation_types import SpeculationStep
from slipstream.rpc.metrics import histogram_family, position_family

_GAP_BUCKETS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5, 10)


@dataclass(slots=True)
class TokenTimes:
    """When the first and the last token of a choice came, in seconds of time.monotonic(); 0.0 before there is any."""

    first: float = 0.0
    last: float = 0.0

    def arrive(self, now: float) -> float | None:
        """Take in tokens that have come together. Seconds since those before; None for the first ones."""
        gap = now - self.last if self.first else None
        self.first, self.last = self.first or now, now
        return gap

    def per_token(self, count: int) -> float | None:
        """Mean seconds between `count` tokens; None of fewer than two."""
        return (self.last - self.first) / (count - 1) if count > 1 else None


class TokenFigures(Collector):
    """Tokens, drafts and the time between outputs, of all choices. Belongs to the event loop; any thread may collect.

    A step's tokens come together and count as one interval between tokens, as vLLM counts.
    """

    def __init__(self) -> None:
        self._gaps = BucketCounts(_GAP_BUCKETS)
        self._positions = PositionCounts()
        self._tokens = self._steps = self._drafted = self._accepted = 0

    def count(self, tokens: int, step: SpeculationStep | None, gap: float | None) -> None:
        """One output of one choice with so many tokens, `gap` seconds after its last one; None for the first."""
        self._tokens += tokens
        if gap is not None:
            self._gaps.observe(gap)
        if step is not None:
            self._steps += 1
            self._drafted += step.drafted
            self._accepted += step.accepted
            self._positions.count(step.drafted, step.accepted)

    def collect(self) -> Iterator[Metric]:
        """See Collector."""
        for name, text, value in (
            ("completion_tokens", "Output tokens", self._tokens),
            ("verify_steps", "Verify steps of all outputs", self._steps),
            ("drafts", "Verify steps of all outputs that had drafted tokens", self._positions.drafts),
            ("drafted_tokens", "Drafted tokens verified", self._drafted),
            ("accepted_tokens", "Drafted tokens accepted", self._accepted),
        ):
            yield CounterMetricFamily(f"slipstream_gateway_{name}", text, value)
        yield position_family(
            "slipstream_gateway_accepted_tokens_per_position",
            "Drafted tokens accepted, by their place after the last token",
            self._positions,
        )
        yield histogram_family(
            "slipstream_gateway_inter_token_seconds", "Between outputs of a choice, one a verify step", self._gaps
        )
