"""What the gateway counts once a verify step, and once a request, in plain numbers; read when scraped."""

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
_PER_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5)
_CHOICE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
_TOKEN_BUCKETS = (1, 10, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000)


@dataclass(slots=True)
class TokenTimes:
    """When the first and the last token of a choice came, in seconds of time.monotonic(); 0.0 before there is any."""

    first: float = 0.0
    last: float = 0.0

    def per_token(self, count: int) -> float | None:
        """Mean seconds between `count` tokens; None of fewer than two."""
        return (self.last - self.first) / (count - 1) if count > 1 else None


class TokenFigures(Collector):
    """Tokens, drafts and the time between outputs, of all choices. Belongs to the event loop; any thread may collect.

    A step's tokens come together and count as one interval between tokens, as vLLM counts. `choices` and `max_tokens`
    are those of requests, `per_token` are mean seconds between tokens of choices that are over.
    """

    def __init__(self) -> None:
        self._gaps = BucketCounts(_GAP_BUCKETS)
        self._positions = PositionCounts()
        self._tokens = self._steps = self._drafted = self._accepted = self._prompt = self._cached = 0
        self.choices = BucketCounts(_CHOICE_BUCKETS)
        self.max_tokens = BucketCounts(_TOKEN_BUCKETS)
        self.per_token = BucketCounts(_PER_TOKEN_BUCKETS)

    def count(self, tokens: int, step: SpeculationStep | None, times: TokenTimes, now: float) -> None:
        """One output of one choice with so many tokens, which come `now`; `times` are those of the choice."""
        if tokens:
            self._tokens += tokens
            if times.first:
                self._gaps.observe(now - times.last)
            else:
                times.first = now
            times.last = now
        if step is not None:
            self._steps += 1
            if step.drafted:
                self._drafted += step.drafted
                self._accepted += step.accepted
                self._positions.count(step.drafted, step.accepted)

    def count_prompt(self, tokens: int, cached: int) -> None:
        """A choice is over whose prompt had so many tokens, some of them cached."""
        self._prompt += tokens
        self._cached += cached

    def collect(self) -> Iterator[Metric]:
        """See Collector."""
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens", self._prompt),
            ("cached_prompt_tokens", "Prompt tokens whose KV came from the prefix cache", self._cached),
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
        for name, text, values in (
            ("inter_token_seconds", "Between outputs of a choice, one a verify step", self._gaps),
            ("time_per_output_token_seconds", "Mean time between the tokens of a choice", self.per_token),
            ("request_choices", "Choices of a request", self.choices),
            ("request_max_tokens", "max_tokens of requests that set it", self.max_tokens),
        ):
            yield histogram_family(f"slipstream_gateway_{name}", text, values)
