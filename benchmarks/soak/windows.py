"""A long run as a series of windows, few enough to be kept."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

from benchmarks.lib.percentiles import spread
from benchmarks.soak.judge import DEVICE, Look
from benchmarks.soak.load import Request

MOST_WINDOWS = 180
_MIB = 1 << 20


def windows_of(looks: Sequence[Look], requests: Sequence[Request], span: tuple[float, float]) -> dict[str, Any]:
    """Columns of equal length: of each window the last look before its end, and the requests that ended in it.

    Windows are equally long, and no more than looks; `looks` are in order, one at least.
    """
    begin, end = span
    number = min(MOST_WINDOWS, len(looks))
    width = (end - begin) / number
    spans = [(begin + index * width, begin + (index + 1) * width) for index in range(number)]
    kept = [looks[max(0, bisect.bisect_left(looks, high, key=lambda look: look.at) - 1)] for _, high in spans]
    parts = [[request for request in requests if low <= request.ended < high] for low, high in spans]
    names = dict.fromkeys(name for look in kept for name in look.processes)
    processes: dict[str, Any] = {name: _columns(kept, name) for name in names}
    if any(look.device for look in kept):
        processes[DEVICE] = {"rss_mib": [_mib(look.device) for look in kept]}
    return {
        "seconds": [round(high - begin, 1) for _, high in spans],
        "in_flight": [look.in_flight for look in kept],
        "tokens_per_second": [round(sum(request.tokens for request in part) / width, 1) for part in parts],
        "failed": [sum(request.failure is not None for request in part) for part in parts],
        "ttft_ms": _spreads([[request.ttft for request in part if request.ttft is not None] for part in parts]),
        "tpot_ms": _spreads([[request.tpot for request in part if request.tpot is not None] for part in parts]),
        "processes": processes,
    }


def _columns(looks: Sequence[Look], name: str) -> dict[str, list[Any]]:
    samples = [look.processes.get(name) for look in looks]
    return {
        "rss_mib": [None if sample is None else _mib(sample.rss) for sample in samples],
        "descriptors": [None if sample is None else sample.descriptors for sample in samples],
        "threads": [None if sample is None else sample.threads for sample in samples],
    }


def _spreads(parts: Sequence[Sequence[float]]) -> dict[str, list[float | None]]:
    found = [spread(part) for part in parts]
    return {name: [each.get(name) for each in found] for name in ("p50", "p99")}


def _mib(count: int) -> float:
    return round(count / _MIB, 1)
