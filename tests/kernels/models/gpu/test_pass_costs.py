from __future__ import annotations

import numpy as np
import pytest

from slipstream_kernels.models.gpu.buckets import Buckets
from slipstream_kernels.models.gpu.limits import GpuLimits
from slipstream_kernels.models.gpu.pass_costs import forest


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
    """More rows than requests can only be those of trees; a pass fills its bucket."""
    buckets = Buckets(limits)
    for rows in buckets.decode_rows:
        plan = forest(rows, limits)
        assert plan.rows == rows and plan.has_trees == (rows > 1 and limits.scratch_slots > 0)
        assert len(plan.decodes) <= limits.max_running and plan.decodes[:, 1].max() <= limits.max_nodes
        assert int((plan.parents != -2).sum()) <= limits.scratch_slots
        assert np.array_equal(plan.decodes[:, 2], np.arange(len(plan.decodes)))
        found = buckets.find(rows, rows, has_trees=plan.has_trees, has_prefill=False)
        assert found.rows == rows and found in buckets.all()
