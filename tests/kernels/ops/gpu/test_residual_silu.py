from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ops.gpu.residual_silu import residual_silu, residual_silu_reference


@pytest.mark.parametrize(("heads", "rows", "width", "alike"), [(3, 2, 48, True), (2, 5, 1040, False)])
def test_as_torch_has_it(heads: int, rows: int, width: int, alike: bool, device: torch.device) -> None:
    """alike: all heads read the same states, and their sums lie side by side by row, else by head; then in place."""
    generator = torch.Generator().manual_seed(width)
    sums = torch.randn(rows, heads * width, generator=generator) * 4
    sums[0, :3] = torch.tensor([-200.0, 200.0, 0.0])
    sums = sums.to(device).view(rows, heads, width).transpose(0, 1)
    x = torch.randn(1 if alike else heads, rows, width, generator=generator).bfloat16().to(device)
    out, wanted = torch.zeros(2, heads, rows, width, dtype=torch.bfloat16, device=device)
    residual_silu_reference(x.expand(heads, -1, -1), sums, 0.3, wanted)
    if alike:
        residual_silu(x.expand(heads, -1, -1), sums, 0.3, out)
    else:
        residual_silu(x, sums.contiguous(), 0.3, x)
        out = x
    assert out.abs().amax(dim=2).all()
    torch.testing.assert_close(out, wanted, rtol=2**-7, atol=1e-6)
