from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ops.gpu.scale_queries import scale_queries, scale_queries_reference
from slipstream_kernels.ops.query_temperature import QueryTemperature


@pytest.mark.parametrize(("heads", "head_dim"), [(3, 64), (20, 128)])
def test_matches_torch(device, heads, head_dim):
    """A row's factor is that of its position; a factor of 1 leaves its bits."""
    factors = torch.from_numpy(QueryTemperature(8, 0.5).table(40)).to(device)
    positions = torch.tensor([0, 39, 7, 6, 23], dtype=torch.int32, device=device)
    q = torch.randn(5, heads, head_dim, generator=torch.Generator().manual_seed(1)).bfloat16().to(device)
    expected = (q.double() * factors[positions.long()].double()[:, None, None]).bfloat16()
    for run in (scale_queries, scale_queries_reference):
        out = q.clone()
        run(out, positions, factors)
        assert torch.equal(out, expected)
    assert torch.equal(expected[[0, 3]], q[[0, 3]])
    assert not torch.equal(expected[2], q[2])
