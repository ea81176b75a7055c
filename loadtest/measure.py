"""What is measured of one streamed answer, and of all answers at one concurrency."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed answer. Times in seconds on one clock."""

    started: float
    first_token: float
    last_token: float
    tokens: int
    verify_steps: int = 0

    @property
    def ttft(self) -> float:
        """Time to first token, from the sending of the request."""
        return self.first_token - self.started

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None for an answer of one token."""
        return (self.last_token - self.first_token) / (self.tokens - 1) if self.tokens > 1 else None


@dataclass(frozen=True, slots=True)
class Level:
    """All answers of one API at one concurrency. Times in milliseconds, NaN where nothing was measured."""

    api: str
    concurrency: int
    answers: int
    failures: int
    seconds: float
    tokens_per_second: float
    requests_per_second: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    tpot_p50_ms: float
    tpot_p95_ms: float
    tokens_per_step: float


def summarise(api: str, concurrency: int, answers: Sequence[Answer], failures: int) -> Level:
    """Percentiles and rates. Rates count from the first request sent to the last token received."""
    seconds = max((each.last_token for each in answers), default=0.0) - min(
        (each.started for each in answers), default=0.0
    )
    ttft = [each.ttft for each in answers]
    tpot = [each.tpot for each in answers if each.tpot is not None]
    tokens = sum(each.tokens for each in answers)
    steps = sum(each.verify_steps for each in answers)
    return Level(
        api=api,
        concurrency=concurrency,
        answers=len(answers),
        failures=failures,
        seconds=seconds,
        tokens_per_second=_ratio(tokens, seconds),
        requests_per_second=_ratio(len(answers), seconds),
        ttft_p50_ms=1e3 * percentile(ttft, 50),
        ttft_p95_ms=1e3 * percentile(ttft, 95),
        tpot_p50_ms=1e3 * percentile(tpot, 50),
        tpot_p95_ms=1e3 * percentile(tpot, 95),
        tokens_per_step=_ratio(tokens, steps),
    )


def percentile(values: Sequence[float], percent: int) -> float:
    """Linear interpolation between the nearest ranks; NaN for no values."""
    if len(values) < 2:
        return values[0] if values else float("nan")
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _ratio(amount: float, base: float) -> float:
    return amount / base if base > 0 else float("nan")
