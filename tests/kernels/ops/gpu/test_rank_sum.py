from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ops.gpu.rank_sum import rank_sum, rank_sum_reference

OPS = [rank_sum, rank_sum_reference]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_residual", [False, True])
def test_matches_float64(device, op, ranks: int, dtype: torch.dtype, *, with_residual: bool) -> None:
    torch.manual_seed(ranks)
    parts = torch.randn(ranks, 7, 208, device=device).to(dtype)
    residual = torch.randn(7, 208, dtype=torch.bfloat16, device=device) if with_residual else None
    expected = parts.double().sum(0) + (0 if residual is None else residual.double())
    out = torch.full((7, 208), torch.nan, dtype=torch.bfloat16, device=device)
    op(parts, residual, out)
    # One rounding to bfloat16 beside float32's error, which stands out where terms cancel.
    assert ((out.double() - expected).abs() <= expected.abs() * 2**-8 + 1e-5).all()


@pytest.mark.parametrize("op", OPS)
def test_order_is_the_ranks(device, op) -> None:
    parts = torch.tensor([1.0, 2.0**25, -(2.0**25)], device=device).view(3, 1, 1).expand(3, 2, 16).contiguous()
    out = torch.full((2, 16), torch.nan, device=device)
    op(parts, None, out)
    assert (out == 0).all()
    op(parts.flip(0).contiguous(), None, out)
    assert (out == 1).all()


@pytest.mark.parametrize("op", OPS)
def test_residual_may_be_the_output(device, op) -> None:
    parts = torch.randn(2, 3, 16, device=device)
    residual = torch.randn(3, 16, dtype=torch.bfloat16, device=device)
    out = torch.full((3, 16), torch.nan, dtype=torch.bfloat16, device=device)
    op(parts, residual, out)
    op(parts, residual, residual)
    assert torch.equal(out, residual)


@pytest.mark.parametrize("op", OPS)
def test_parts_may_lie_apart(device, op) -> None:
    """Parts of a pass with fewer rows than the buffer has."""
    buffer = torch.full((3, 10, 16), torch.nan, device=device)
    parts = buffer[:, :4]
    parts.copy_(torch.randn(3, 4, 16))
    out = torch.full((4, 16), torch.nan, device=device)
    op(parts, None, out)
    assert torch.equal(out, parts[0] + parts[1] + parts[2])
