from __future__ import annotations

import torch

from slipstream_kernels.ops.gpu.soft_cap import soft_cap, soft_cap_reference


def test_matches_torch(device):
    x = torch.linspace(-200, 200, 5001).view(3, -1).contiguous()
    expected = 30 * torch.tanh(x.double() / 30)
    for run in (soft_cap, soft_cap_reference):
        out = x.clone().to(device)
        run(out, 30.0)
        torch.testing.assert_close(out.cpu().double(), expected, rtol=1e-5, atol=1e-5)
        assert out.abs().max() <= 30
    out = torch.tensor([0.0, torch.inf, -torch.inf, torch.nan], device=device)
    soft_cap(out, 2.0)
    assert out[:3].tolist() == [0.0, 2.0, -2.0] and out[3].isnan()
