"""What passes of growing size cost, measured before any request runs."""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np

from slipstream_kernels.models.gpu.buckets import Buckets
from slipstream_kernels.models.gpu.limits import GpuLimits
from slipstream_kernels.models.gpu.pass_plan import Int32, PassPlan
from slipstream_kernels.models.gpu.ticket import Ticket

_CONTEXT = 1024
"""Committed tokens of each request that is measured, where the model and the pages allow so many."""
_REPEATS = 5


class Launcher(Protocol):
    """What of `GpuModel` is needed here."""

    limits: GpuLimits

    def launch(self, plan: PassPlan) -> Ticket: ...


def measure_row_costs(model: Launcher) -> list[tuple[int, float]]:
    """(rows, seconds) of decode passes of growing size, from launch to results, the median of several.

    All of more than one row have trees, unless the limits allow none.
    """
    costs = []
    for rows in Buckets(model.limits).decode_rows:
        plan = forest(rows, model.limits)
        model.launch(plan).results()
        costs.append((rows, float(np.median([_timed(model, plan) for _ in range(_REPEATS)]))))
    return costs


def forest(rows: int, limits: GpuLimits) -> PassPlan:
    """A pass of `rows` rows in as few trees as hold them, all nodes below the root, on the first lines' pages."""
    trees = -(-rows // limits.max_nodes)
    roots = max(trees, rows - limits.scratch_slots)
    base = max(1, min(_CONTEXT, limits.max_context - 1, limits.num_pages * limits.page_size))
    sizes = np.full(roots, rows // roots, np.int32)
    sizes[: rows % roots] += 1
    starts = (np.cumsum(sizes) - sizes).astype(np.int32)
    root_rows = np.repeat(starts, sizes)
    lines = np.repeat(np.arange(roots, dtype=np.int32), sizes)
    drafted = np.arange(rows) != root_rows
    bases = np.full(roots, base, np.int32)
    spans = np.stack([starts, sizes, np.arange(roots, dtype=np.int32), bases], axis=1)
    return PassPlan(
        token_ids=np.zeros(rows, np.int32),
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


def _slots(drafted: np.ndarray[tuple[int], np.dtype[np.bool_]], lines: Int32, limits: GpuLimits) -> Int32:
    pages = limits.num_pages * limits.page_size
    scratch = pages + np.cumsum(drafted) - 1
    return np.where(drafted, scratch, lines % pages).astype(np.int32)


def _timed(model: Launcher, plan: PassPlan) -> float:
    begun = time.perf_counter()
    model.launch(plan).results()
    return time.perf_counter() - begun
