"""Rows gathered by number, copied or normalised."""

import pytest
import torch

from slipstream_kernels.ops.gpu.gather_norm import gather_norm, gather_norm_reference


@pytest.mark.parametrize("rows", [None, [3, 0, -1, 3, 5]])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("width", [48, 512])
def test_is_the_twin(rows, normed, width, device):
    generator = torch.Generator().manual_seed(width)
    wide = torch.randn(6, 2 * width, generator=generator).bfloat16().to(device)
    source = wide[:, width:]
    weight = torch.randn(width, generator=generator).bfloat16().to(device) if normed else None
    chosen = None if rows is None else torch.tensor(rows, dtype=torch.int32, device=device)
    got, wanted = (torch.zeros(5, 3 * width, dtype=torch.bfloat16, device=device) for _ in range(2))
    gather_norm(source, chosen, weight, got[:, width : 2 * width], 1e-5)
    gather_norm_reference(source, chosen, weight, wanted[:, width : 2 * width], 1e-5)
    torch.testing.assert_close(got, wanted, rtol=2**-7, atol=0)
    assert not got[:, :width].any() and not got[:, 2 * width :].any()
    assert got[:, width : 2 * width].any(dim=1).all()
