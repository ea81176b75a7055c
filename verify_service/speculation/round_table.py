"""What rounds of a proposer take by its drafter's own word, between and beyond the numbers that it names."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from slipstream_kernels.draft_protocol.records import RoundCost
from verify_service.core.step_time_model import LEAST_SECONDS, StepTimeModel

AHEAD = 2
"""Levels' worth of time that a round takes besides those it drafts, where only rounds of one depth are known."""


class RoundTable:
    """Seconds of a round, as a line over its levels for each number of requests; more requests never take less.

    Whatever ran beside the drafter as it measured has made rounds longer, never shorter: see `_plausible`.
    Beyond the most requests named a round takes as many times longer as a pass of the target did when passes were
    measured: what passes come to take, as contexts grow, is not the drafter's, so that a line once drawn stays true.
    """

    __slots__ = ("_base", "_known", "_level", "_requests", "_step_time", "costs")

    def __init__(self, costs: Sequence[RoundCost], step_time: StepTimeModel) -> None:
        """`costs`: at least one."""
        self.costs = tuple(costs)
        self._step_time = step_time
        by_levels: dict[int, dict[int, float]] = {}
        for requests, levels, seconds in costs:
            by_levels.setdefault(levels, {})[requests] = seconds
        by_requests: dict[int, dict[int, float]] = {}
        for levels, said in by_levels.items():
            for requests, seconds in _plausible(said).items():
                by_requests.setdefault(requests, {})[levels] = seconds
        lines = [_line(_plausible(by_requests[requests])) for requests in sorted(by_requests)]
        self._requests = sorted(by_requests)
        self._base = list(accumulate((base for base, _ in lines), max))
        self._level = list(accumulate((level for _, level in lines), max))
        self._known: dict[int, tuple[float, float]] = {}

    def seconds(self, requests: int, levels: int) -> float:
        """Of a round for the trees of so many requests, so many levels deep."""
        base, level = self._known.get(requests) or self._of(requests)
        return max(LEAST_SECONDS, base + levels * level)

    def _of(self, requests: int) -> tuple[float, float]:
        last = self._requests[-1]
        beyond = self._step_time.growth(requests) / self._step_time.growth(last) if requests > last else 1.0
        base, level = (float(np.interp(requests, self._requests, each)) for each in (self._base, self._level))
        self._known[requests] = known = beyond * base, beyond * level
        return known


def _plausible(said: dict[int, float]) -> dict[int, float]:
    """Seconds by requests, or by levels: at most those of more, and at most so many times those of fewer.

    A round for more would be quicker than it was otherwise, or one for fewer, made several times, quicker than it.
    """
    sizes = sorted(said)
    least = dict(zip(reversed(sizes), accumulate((said[size] for size in reversed(sizes)), min), strict=True))
    for fewer, more in pairwise(sizes):
        least[more] = min(least[more], least[fewer] * more / fewer)
    return least


def _line(seconds: dict[int, float]) -> tuple[float, float]:
    """Seconds of a round besides its levels, and of a level, by levels."""
    least, most = min(seconds), max(seconds)
    if least == most:
        level = seconds[least] / (AHEAD + least)
        return AHEAD * level, level
    level = max(0.0, (seconds[most] - seconds[least]) / (most - least))
    return max(0.0, seconds[least] - least * level), level
