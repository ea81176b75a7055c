from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ops.gpu.fp8_linear.quantise_rows import quantise_rows, quantise_rows_reference


@pytest.mark.parametrize("inputs", [16, 400, 4096])
def test_rows_of_all_sizes_are_the_twins(device: torch.device, inputs: int) -> None:
    """Also of zeros, of what is no number, and of rows that lie apart."""
    generator = torch.Generator().manual_seed(inputs)
    rows = torch.randn(9, 2 * inputs, generator=generator)
    rows *= torch.exp2(torch.tensor([0, -30, 40, 5, -110, 0, 3, -126, 119.0]))[:, None]
    rows[5] = 0
    rows[6, 3], rows[6, 7] = torch.nan, -torch.inf
    x = rows.bfloat16().to(device)[:, :inputs]
    (codes, scales), (expected, of_rows) = (
        (torch.full((9, inputs), 9, dtype=torch.uint8, device=device), torch.full((9,), -1.0, device=device))
        for _ in range(2)
    )
    quantise_rows(x, codes, scales)
    quantise_rows_reference(x, expected, of_rows)
    assert torch.equal(codes, expected)
    assert torch.equal(scales, of_rows)
    kept = codes[0].view(torch.float8_e4m3fn).float() * scales[0]
    assert float((kept - x[0].float()).norm() / x[0].float().norm()) < 0.04
    assert float(codes[0].view(torch.float8_e4m3fn).float().abs().max()) > 224


def test_many_wide_rows_are_those_of_few(device: torch.device) -> None:
    """Also where the largest element is in the last tile, which is not full."""
    x = torch.randn(133, 8720, generator=torch.Generator().manual_seed(0)).bfloat16().to(device)
    x[0, -1], x[1, 5000], x[2] = 1000, torch.nan, 0
    (codes, scales), (expected, of_rows) = (
        (torch.full(x.shape, 9, dtype=torch.uint8, device=device), torch.full((133,), -1.0, device=device))
        for _ in range(2)
    )
    quantise_rows(x, codes, scales)
    quantise_rows_reference(x, expected, of_rows)
    assert torch.equal(codes, expected)
    assert torch.equal(scales, of_rows)
    quantise_rows(x[:4], expected[:4].fill_(9), of_rows[:4])
    assert torch.equal(codes[:4], expected[:4])
