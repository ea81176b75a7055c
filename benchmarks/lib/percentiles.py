"""What is said of many durations: their percentiles and their median."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Percentiles in milliseconds."""
    if not seconds:
        return {}
    ordered = sorted(seconds)
    at = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
    return {
        name: round(1000 * ordered[min(len(ordered) - 1, int(part * len(ordered)))], 2) for name, part in at.items()
    }


def percentile(values: Sequence[float], part: float) -> float | None:
    """Between the nearest two values, linearly, as numpy has it; `part` is from 0 to 1. None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    place = part * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def middle(values: Sequence[float]) -> float:
    """The median; 0.0 of nothing."""
    return statistics.median(values) if values else 0.0
