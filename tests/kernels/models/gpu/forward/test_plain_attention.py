from __future__ import annotations

import numpy as np

from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.forward.plain_attention import requests_of
from support.gpu_passes import Span, pass_of


def test_requests_come_in_the_order_of_their_rows() -> None:
    limits = GpuLimits(num_pages=40, max_context=256)
    spans = [Span(2, [7] * 5, 20, [1, 2]), Span(0, [7], 16, [3, 4]), Span(1, [7] * 3, 0, [5]), Span(5, [7], 0, [6])]
    plan = pass_of(limits, spans).reordered()
    rows, lines, lengths = requests_of(plan)
    assert (rows.tolist(), lines.tolist(), lengths.tolist()) == ([1, 1, 5, 3], [0, 5, 2, 1], [17, 1, 25, 3])
    assert rows.dtype == lines.dtype == lengths.dtype == np.int32
    assert np.repeat(lines, rows).tolist() == plan.lines.tolist()
    assert lengths.tolist() == [int(plan.prefix_lengths[end - 1]) for end in np.cumsum(rows)]
