from __future__ import annotations

import torch

from slipstream_kernels.ops.gpu.gate_up import interleave_gate_up
from slipstream_kernels.ops.gpu.gelu_mul import gelu_mul, gelu_mul_reference


def test_matches_torch(device):
    generator = torch.Generator().manual_seed(0)
    gate_up = (torch.randn(5, 2 * 1088, generator=generator) * 3).bfloat16()
    gate_up[0, :8] = torch.tensor([0.0, -0.0, 1e10, -1e10, 200.0, -200.0, 1e-10, -1e-10])
    ordered = interleave_gate_up(gate_up.T.contiguous()).T.contiguous().to(device)
    ours, theirs = (torch.full((5, 1088), torch.nan, dtype=torch.bfloat16, device=device) for _ in range(2))
    gelu_mul(ordered, ours)
    gelu_mul_reference(ordered, theirs)
    gate, up = gate_up.double().chunk(2, dim=1)
    expected = torch.nn.functional.gelu(gate, approximate="tanh") * up
    for found in (ours, theirs):
        torch.testing.assert_close(found.cpu().double(), expected, rtol=8e-3, atol=1e-6)
