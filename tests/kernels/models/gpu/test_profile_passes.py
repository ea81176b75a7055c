from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from slipstream_kernels.models.gpu.batch.buckets import Buckets
from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.batch.pass_plan import Int32, PassPlan
from slipstream_kernels.models.gpu.graph.pass_clock import PassSeconds
from slipstream_kernels.models.gpu.profile_passes import forest, measure_pass_costs, measured_requests, measured_rows


@pytest.mark.parametrize(
    "limits",
    [
        GpuLimits(max_running=100, step_nodes=4032, num_pages=64, max_context=4096),
        GpuLimits(max_running=4, max_nodes=8, step_nodes=512, num_pages=2, max_context=64),
        GpuLimits(max_running=48, max_nodes=64, step_nodes=5, num_pages=99, max_context=512),
        GpuLimits(max_running=32, step_nodes=0, num_pages=99, max_context=512),
    ],
)
def test_measured_passes_are_such_as_are_served(limits: GpuLimits) -> None:
    """More rows than requests can only be those of trees; but for those without trees, a pass fills its bucket."""
    buckets = Buckets(limits)
    measured = measured_requests(limits)
    assert measured == sorted(set(measured)) and measured[0] == 1 and measured[-1] == limits.max_running
    for requests in measured:
        sizes = measured_rows(requests, limits)
        assert sizes == sorted(set(sizes)) and sizes[0] == requests
        for rows in sizes:
            plan = forest(requests, rows, limits, 500)
            assert plan.rows == rows and plan.has_trees == (rows > requests)
            assert len(set(plan.token_ids.tolist())) == min(rows, 500) and plan.token_ids.max() < 500
            assert len(plan.decodes) == requests and plan.decodes[:, 1].max() <= limits.max_nodes
            assert int((plan.parents != -2).sum()) == rows - requests <= limits.scratch_slots
            assert np.array_equal(plan.decodes[:, 2], np.arange(requests))
            found = buckets.find(rows, rows, has_trees=plan.has_trees, has_prefill=False)
            assert (found.rows == rows or rows == requests) and found in buckets.all()
    if limits.scratch_slots:
        assert measured_rows(limits.max_running, limits)[-1] == limits.max_decode_rows


def test_a_few_dozen_passes_are_measured() -> None:
    limits = GpuLimits(max_running=64, step_nodes=512, num_pages=64, max_context=4096)
    assert sum(len(measured_rows(requests, limits)) for requests in measured_requests(limits)) <= 48


class Recorded(NamedTuple):
    """What is measured, instead of a model."""

    limits: GpuLimits
    pages: dict[int, list[int]]
    passes: list[tuple[int, int]]
    has_clock: bool = False

    def set_pages(self, line: int, start: int, pages: Int32) -> None:
        self.pages[line] = pages.tolist()

    def launch(self, plan: PassPlan) -> Any:
        self.passes.append((len(plan.decodes), plan.rows))
        times = SimpleNamespace(seconds=lambda: PassSeconds(7.0, 1e-3 * plan.rows)) if self.has_clock else None
        return SimpleNamespace(results=lambda: None, times=times)


def test_requests_that_are_measured_have_pages_of_their_own() -> None:
    model = Recorded(GpuLimits(max_running=5, max_nodes=4, step_nodes=6, num_pages=40, max_context=100), {}, [])
    costs = measure_pass_costs(model, 500)
    assert [each[:2] for each in costs] == list(dict.fromkeys(model.passes))
    assert len({page for pages in model.pages.values() for page in pages}) == 5 * 7


def test_a_pass_takes_what_the_device_says_without_what_it_waited_for_the_host() -> None:
    limits = GpuLimits(max_running=4, max_nodes=4, step_nodes=6, num_pages=40, max_context=100)
    costs = measure_pass_costs(Recorded(limits, {}, [], has_clock=True), 500)
    assert [seconds for _, _, seconds in costs] == pytest.approx([1e-3 * rows for _, rows, _ in costs])
