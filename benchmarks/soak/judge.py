"""Whether a server is the same at the end of a long run as early in it: memory, descriptors, threads, latency."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.lib.percentiles import spread
from benchmarks.lib.process_samples import ProcessSample
from benchmarks.soak.load import Request

Facts = dict[str, Any]
QUARTERS = 4
DEVICE = "GPU"
"""Stands for a process in figures: the memory of the GPU, whoever holds it."""
_HOUR = 3600.0
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Bounds:
    """What counts as flat."""

    memory_mib_per_hour: float = 32.0
    """slope of memory in the second half: of resident memory by least squares, of the GPU's by the least of quarters"""
    memory_mib: float = 8.0
    """what it may grow by in that half, whatever the slope: allocators take memory in pieces"""
    descriptors: int = 4
    threads: int = 2
    """both: by how much more there may be without load at the end than before it"""
    under_load: float = 0.25
    """as a part of it, by how much the least of either in the last quarter may be above that of the second besides"""
    p50_ratio: float = 1.3
    p99_ratio: float = 2.0
    """of TTFT and TPOT, the last quarter against the second"""
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """One sample of everything. `at` is time.perf_counter(); `device` bytes in use on the GPU, 0 without one."""

    at: float
    processes: Mapping[str, ProcessSample]
    device: int
    in_flight: int


def judge(
    looks: Sequence[Look],
    requests: Sequence[Request],
    span: tuple[float, float],
    idle: tuple[Look, Look],
    bounds: Bounds,
) -> tuple[Facts, list[str]]:
    """Figures by quarter of the span, and what is not flat. ValueError without two looks in each quarter.

    `idle` are looks without load, before and after.
    """
    begin, end = span
    quarter = (end - begin) / QUARTERS
    spans = [(begin + index * quarter, begin + (index + 1) * quarter) for index in range(QUARTERS)]
    looked = [[look for look in looks if low <= look.at < high] for low, high in spans]
    if min(map(len, looked)) < 2:
        raise ValueError(f"quarters of {quarter:.0f} s have too few samples: {[len(each) for each in looked]}")
    latency = [_latency(requests, low, high) for low, high in spans]
    processes = {name: _process(looked, idle, name) for name in idle[0].processes}
    if any(look.device for look in looks):
        processes[DEVICE] = _device(looked)
    failures = Counter(request.failure for request in requests if request.failure is not None)
    facts = {
        "quarters": latency,
        "processes": processes,
        "failures": dict(failures),
        "bounds": asdict(bounds),
    }
    broken = [what for name, found in processes.items() for what in _grown(name, found, bounds, quarter)]
    broken += _slower(latency[1], latency[3], bounds)
    if sum(failures.values()) > bounds.failures:
        broken.append(f"{sum(failures.values())} requests failed")
    if not any(each["answered"] for each in latency):
        broken.append("no answers")
    return facts, broken


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Of the line through the points by least squares, in units of `values` a second; 0.0 of a single time."""
    if len(set(times)) < 2:
        return 0.0
    return statistics.linear_regression(times, values).slope


def _process(looked: Sequence[Sequence[Look]], idle: Sequence[Look], name: str) -> Facts:
    bare = [look.processes[name] for look in idle if name in look.processes]
    found = [[look.processes[name] for look in looks if name in look.processes] for looks in looked]
    late = [sample for samples in found[QUARTERS // 2 :] for sample in samples]
    shares = [[sample.pss for sample in samples if sample.pss is not None] for samples in found]
    return {
        "same_process": len({sample.pid for samples in (*found, bare) for sample in samples}) == 1
        and all(len(samples) == len(looks) for samples, looks in zip((*found, bare), (*looked, idle), strict=True)),
        "rss_mib": [_mean_mib([sample.rss for sample in samples]) for samples in found],
        "pss_mib": [_mean_mib(values) for values in shares],
        "mib_per_hour": _per_hour([sample.at for sample in late], [sample.rss for sample in late]),
        "descriptors": [min((sample.descriptors for sample in samples), default=0) for samples in found],
        "threads": [min((sample.threads for sample in samples), default=0) for samples in found],
        "idle_descriptors": [sample.descriptors for sample in bare],
        "idle_threads": [sample.threads for sample in bare],
        "cores": [_cores(samples) for samples in found],
    }


def _device(looked: Sequence[Sequence[Look]]) -> Facts:
    """Of the GPU, whose memory comes and goes by hundreds of MiB: a leak shows in the least of each quarter."""
    third, last = (min(looks, key=lambda look: look.device) for looks in looked[QUARTERS // 2 :])
    centres = [statistics.fmean(look.at for look in looks) for looks in looked[QUARTERS // 2 :]]
    return {
        "same_process": True,
        "rss_mib": [_mean_mib([look.device for look in looks]) for looks in looked],
        "least_mib": [round(min(look.device for look in looks) / _MIB, 1) for looks in looked],
        "mib_per_hour": _per_hour(centres, [third.device, last.device]),
    }


def _grown(name: str, found: Facts, bounds: Bounds, quarter: float) -> list[str]:
    """What of a process is not flat."""
    if not found["same_process"]:
        return [f"{name} ended"]
    broken = []
    steep = found["mib_per_hour"]
    if steep > bounds.memory_mib_per_hour and steep * 2 * quarter / _HOUR > bounds.memory_mib:
        broken.append(f"memory of {name} grows by {steep:.0f} MiB an hour")
    for what, most in (("descriptors", bounds.descriptors), ("threads", bounds.threads)):
        if what in found:
            (_, early, _, late), (before, after) = found[what], found[f"idle_{what}"]
            if late - early > max(most, bounds.under_load * early):
                broken.append(f"{what} of {name} grow from {early} to {late}")
            if after - before > most:
                broken.append(f"{what} of {name} without load: {before} before, {after} afterwards")
    return broken


def _slower(second: Facts, last: Facts, bounds: Bounds) -> list[str]:
    broken = []
    for what in ("ttft_ms", "tpot_ms"):
        for name, most in (("p50", bounds.p50_ratio), ("p99", bounds.p99_ratio)):
            before, after = second[what].get(name), last[what].get(name)
            if before is None or after is None:
                broken.append(f"no {what} in a quarter")
            elif after > most * before:
                broken.append(f"{what} {name} went from {before:g} to {after:g}")
    return broken


def _latency(requests: Sequence[Request], begin: float, end: float) -> Facts:
    """Of the requests that ended in a span."""
    ended = [request for request in requests if begin <= request.ended < end]
    return {
        "ended": len(ended),
        "answered": sum(request.failure is None and request.tokens > 0 for request in ended),
        "failed": sum(request.failure is not None for request in ended),
        "tokens_per_second": round(sum(request.tokens for request in ended) / (end - begin), 1),
        "ttft_ms": spread([request.ttft for request in ended if request.ttft is not None]),
        "tpot_ms": spread([request.tpot for request in ended if request.tpot is not None]),
    }


def _cores(samples: Sequence[ProcessSample]) -> float:
    """Processors that it kept busy."""
    if len(samples) < 2:
        return 0.0
    first, last = samples[0], samples[-1]
    return round((last.cpu_seconds - first.cpu_seconds) / max(last.at - first.at, 1e-9), 2)


def _per_hour(times: Sequence[float], values: Sequence[int]) -> float:
    return round(slope(times, values) * _HOUR / _MIB, 2)


def _mean_mib(values: Sequence[int]) -> float | None:
    return round(statistics.fmean(values) / _MIB, 1) if values else None
