from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ops.gpu.gate_up import interleave_gate_up
from slipstream_kernels.ops.gpu.silu_mul import silu_mul, silu_mul_reference


@pytest.mark.parametrize("size", [16, 1024, 1040])
@pytest.mark.parametrize("op", [silu_mul, silu_mul_reference])
def test_matches_float64(device: torch.device, size: int, op) -> None:
    torch.manual_seed(size)
    gate_up = (torch.randn(5, 2 * size, device=device) * 6).bfloat16()
    gate, up = gate_up.double().chunk(2, dim=-1)
    expected = gate * torch.sigmoid(gate) * up
    out = torch.full((5, size), torch.nan, dtype=torch.bfloat16, device=device)
    op(interleave_gate_up(gate_up.T).T.contiguous(), out)
    # One rounding to bfloat16: 2^-8 of each value at most, beside float32's error.
    assert ((out.double() - expected).abs() <= expected.abs() * (2**-8 + 1e-5)).all()


def test_large_gates_do_not_overflow(device: torch.device) -> None:
    gate_up = torch.tensor([[-1e30, -100.0, 100.0, 1e30] * 2 + [1.0] * 8] * 2, device=device).bfloat16()
    out = torch.full((2, 8), torch.nan, dtype=torch.bfloat16, device=device)
    silu_mul(gate_up, out)
    assert out.isfinite().all()
    assert torch.equal(out[0, :4], torch.tensor([0.0, 0.0, 100.0, 1e30], device=device).bfloat16() * gate_up[0, 8])
