"""What is said of one run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Figures:
    """Times to the first token in milliseconds, and the part of the prompt tokens that was cached."""

    requests: int
    ttft_mean_ms: float
    ttft_p50_ms: float
    ttft_p90_ms: float
    hit_rate: float

    @classmethod
    def of(cls, seconds: Sequence[float], hit_rate: float) -> Self:
        """Figures of requests' times in seconds."""
        deciles = statistics.quantiles(seconds, n=10)
        mean, p50, p90 = (round(1000 * value, 1) for value in (statistics.fmean(seconds), deciles[4], deciles[8]))
        return cls(len(seconds), mean, p50, p90, round(hit_rate, 4))
