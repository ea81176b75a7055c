from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ops.gpu.rms_norm import rms_norm, rms_norm_reference

SIZES = [16, 48, 384, 4096, 8208]


def inputs(rows: int, hidden: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows + hidden)
    x = torch.randn(rows, hidden, device=device) * torch.rand(rows, 1, device=device) * 5
    return x.bfloat16(), torch.randn(hidden, device=device).bfloat16()


def poisoned(rows: int, hidden: int, device: torch.device) -> torch.Tensor:
    return torch.full((rows, hidden), torch.nan, dtype=torch.bfloat16, device=device)


@pytest.mark.parametrize("hidden", SIZES)
@pytest.mark.parametrize("op", [rms_norm, rms_norm_reference])
def test_matches_float64(device: torch.device, hidden: int, op) -> None:
    x, weight = inputs(5, hidden, device)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    out = poisoned(5, hidden, device)
    op(x, weight, out, 1e-5)
    # One rounding to bfloat16: 2^-8 of each value at most, beside float32's error.
    assert ((out.double() - expected).abs() <= expected.abs() * (2**-8 + 1e-5)).all()


@pytest.mark.parametrize("hidden", SIZES)
def test_rows_stand_alone(device: torch.device, hidden: int) -> None:
    x, weight = inputs(7, hidden, device)
    together, alone = poisoned(7, hidden, device), poisoned(7, hidden, device)
    rms_norm(x, weight, together, 1e-6)
    for row in range(7):
        rms_norm(x[row : row + 1], weight, alone[row : row + 1], 1e-6)
    assert torch.equal(together, alone)


@pytest.mark.parametrize("op", [rms_norm, rms_norm_reference])
def test_chosen_rows(device: torch.device, op) -> None:
    x, weight = inputs(6, 48, device)
    whole, chosen = poisoned(6, 48, device), poisoned(4, 48, device)
    op(x, weight, whole, 1e-5)
    op(x, weight, chosen, 1e-5, torch.tensor([5, 0, -1, 3], dtype=torch.int32, device=device))
    assert torch.equal(chosen[[0, 1, 3]], whole[[5, 0, 3]])
    assert chosen.isfinite().all()


def test_in_place(device: torch.device) -> None:
    x, weight = inputs(3, 8208, device)
    out = poisoned(3, 8208, device)
    rms_norm(x, weight, out, 1e-5)
    rms_norm(x, weight, x, 1e-5)
    assert torch.equal(x, out)
