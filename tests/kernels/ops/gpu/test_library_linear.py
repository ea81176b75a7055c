from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ops.gpu.gate_up import interleave_gate_up
from slipstream_kernels.ops.gpu.library_linear import LibraryGatedLinear, library_linear

ROWS = [1, 5, 64]


def randn(device: torch.device, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=device).bfloat16()


def poisoned(device: torch.device, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.full(shape, torch.nan, dtype=dtype, device=device)


def error(out: torch.Tensor, expected: torch.Tensor) -> float:
    return float((out.double() - expected).norm() / expected.norm())


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(11)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("addends", ["", "bias", "residual", "both"])
def test_matches_float64(device: torch.device, rows: int, addends: str) -> None:
    x, weight = randn(device, rows, 96), randn(device, 48, 96)
    bias = randn(device, 48) if addends in ("bias", "both") else None
    residual = randn(device, rows, 48) if addends in ("residual", "both") else None
    expected = x.double() @ weight.double().t()
    for addend in (bias, residual):
        expected = expected if addend is None else expected + addend.double()
    out = poisoned(device, rows, 48)
    library_linear(x, weight, out, bias=bias, residual=residual)
    assert error(out, expected) < 4e-3


def test_residual_may_be_the_output(device: torch.device) -> None:
    x, weight, out = randn(device, 5, 96), randn(device, 48, 96), randn(device, 5, 48)
    expected = x.double() @ weight.double().t() + out.double()
    library_linear(x, weight, out, residual=out)
    assert error(out, expected) < 4e-3


@pytest.mark.parametrize("rows", ROWS)
def test_float32_sums_leave_unrounded(device: torch.device, rows: int) -> None:
    wide = randn(device, rows, 200)
    x, weight = wide[:, :96], randn(device, 48, 96)
    out = poisoned(device, rows, 48, dtype=torch.float32)
    library_linear(x, weight, out)
    assert error(out, x.double() @ weight.double().t()) < 1e-5


def test_float32_outputs_take_no_addends(device: torch.device) -> None:
    x, weight, out = randn(device, 2, 16), randn(device, 16, 16), poisoned(device, 2, 16, dtype=torch.float32)
    with pytest.raises(ValueError, match="no bias"):
        library_linear(x, weight, out, bias=randn(device, 16))


@pytest.mark.parametrize("rows", ROWS)
def test_gated(device: torch.device, rows: int) -> None:
    x, weight = randn(device, rows, 96), randn(device, 2 * 32, 96)
    gate, up = (x.double() @ weight.double().t()).chunk(2, dim=-1)
    out = poisoned(device, rows, 32)
    LibraryGatedLinear(poisoned(device, 64, 64))(x, interleave_gate_up(weight), out)
    assert error(out, gate * torch.sigmoid(gate) * up) < 8e-3
