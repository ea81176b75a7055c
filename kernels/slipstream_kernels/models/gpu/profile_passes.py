"""What passes of growing size cost, measured before any request runs."""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np

from slipstream_kernels.models.gpu.batch.buckets import Buckets
from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.batch.pass_plan import Int32, PassPlan
from slipstream_kernels.models.gpu.graph.pass_handle import PassHandle

_CONTEXT = 1024
"""Committed tokens of each request that is measured, where the model and the pages allow so many."""
_REPEATS = 3
_REQUESTS = (1, 4, 16, 64, 256, 1024)
_STRIDE = 7919
"""Between the tokens of successive rows, a prime: rows alike would have the same experts of a model that has any."""


class Launcher(Protocol):
    """What of `GpuModel` is needed here."""

    limits: GpuLimits

    def set_pages(self, line: int, start: int, pages: Int32) -> None: ...

    def launch(self, plan: PassPlan) -> PassHandle: ...


def measure_pass_costs(model: Launcher, vocab_size: int) -> list[tuple[int, int, float]]:
    """(requests, rows, seconds) of decode passes, the median of several.

    Seconds are the device's, as of passes that are served: what the host takes for a launch, which grows with the
    rows, is what a step waits, and is counted there. Of a device without a clock they are from launch to results.

    Of 1, 4, 16, ... requests, and as many as may run: without trees, and with ever more rows of trees alike. Rows have
    tokens of their own, so that a mixture wakes as many experts as independent rows do. Each request has pages of its
    own, as far as there are so many. What page tables say afterwards is of no use.
    """
    costs = []
    pages = -(-_base(model.limits) // model.limits.page_size)
    for line in range(model.limits.max_running):
        model.set_pages(line, 0, np.arange(line * pages, (line + 1) * pages, dtype=np.int32) % model.limits.num_pages)
    for requests in measured_requests(model.limits):
        for rows in measured_rows(requests, model.limits):
            plan = forest(requests, rows, model.limits, vocab_size)
            model.launch(plan).results()
            seconds = float(np.median([_timed(model, plan) for _ in range(_REPEATS)]))
            costs.append((requests, rows, seconds))
    return costs


def measured_requests(limits: GpuLimits) -> list[int]:
    """Numbers of requests of which passes are measured, ascending."""
    return [requests for requests in _REQUESTS if requests < limits.max_running] + [limits.max_running]


def measured_rows(requests: int, limits: GpuLimits) -> list[int]:
    """Numbers of rows of which passes of so many requests are measured, ascending: theirs, and all sizes beyond."""
    most = requests + min(requests * (limits.max_nodes - 1), limits.scratch_slots)
    return [requests, *(rows for rows in Buckets(limits).decode_rows if requests < rows <= most)]


def forest(requests: int, rows: int, limits: GpuLimits, vocab_size: int) -> PassPlan:
    """A pass of `rows` rows in `requests` trees, all nodes below the root, of the first lines."""
    base = _base(limits)
    sizes = np.full(requests, rows // requests, np.int32)
    sizes[: rows % requests] += 1
    starts = (np.cumsum(sizes) - sizes).astype(np.int32)
    root_rows = np.repeat(starts, sizes)
    lines = np.repeat(np.arange(requests, dtype=np.int32), sizes)
    drafted = np.arange(rows) != root_rows
    bases = np.full(requests, base, np.int32)
    spans = np.stack([starts, sizes, np.arange(requests, dtype=np.int32), bases], axis=1)
    return PassPlan(
        token_ids=(np.arange(rows, dtype=np.int64) * _STRIDE % vocab_size).astype(np.int32),
        positions=np.where(drafted, base, base - 1).astype(np.int32),
        write_slots=_slots(drafted, lines, limits),
        lines=lines,
        prefix_lengths=np.full(rows, base, np.int32),
        parents=np.where(drafted, -1, -2).astype(np.int32),
        root_rows=root_rows,
        logit_rows=np.arange(rows, dtype=np.int32),
        deciding=spans,
        decodes=spans,
        has_trees=bool(drafted.any()),
        keep_logits=False,
    )


def _base(limits: GpuLimits) -> int:
    return max(1, min(_CONTEXT, limits.max_context - 1, limits.num_pages * limits.page_size))


def _slots(drafted: np.ndarray[tuple[int], np.dtype[np.bool_]], lines: Int32, limits: GpuLimits) -> Int32:
    pages = limits.num_pages * limits.page_size
    scratch = pages + np.cumsum(drafted) - 1
    return np.where(drafted, scratch, lines % pages).astype(np.int32)


def _timed(model: Launcher, plan: PassPlan) -> float:
    begun = time.perf_counter()
    launched = model.launch(plan)
    launched.results()
    return time.perf_counter() - begun if launched.times is None else launched.times.seconds().busy
