from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ops.gpu.experts.combine_experts import combine_experts, combine_experts_reference

ROWS, CHOSEN, SIZE = 5, 3, 1040


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("is_shared", [True, False])
def test_matches_its_twin(device: torch.device, is_shared: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    outputs, weights = torch.randn(ROWS * CHOSEN, SIZE, device=device), torch.rand(ROWS, CHOSEN, device=device)
    more = {"residual": torch.randn(ROWS, SIZE, device=device).to(dtype)}
    if is_shared:
        more |= {"shared": torch.randn(ROWS, SIZE, device=device), "scores": torch.randn(ROWS, 4, device=device)[:, 2]}
    expected = torch.empty(ROWS, SIZE, dtype=dtype, device=device)
    combine_experts_reference(outputs, weights, expected, **more)
    combine_experts(outputs, weights, more["residual"], **more)
    torch.testing.assert_close(more["residual"], expected, rtol=1e-5 if dtype == torch.float32 else 2**-7, atol=1e-6)


@pytest.mark.parametrize("op", [combine_experts, combine_experts_reference])
def test_all_may_be_added_as_it_is(device: torch.device, op) -> None:
    torch.manual_seed(0)
    outputs, weights = torch.randn(ROWS * CHOSEN, SIZE, device=device), torch.rand(ROWS, CHOSEN, device=device)
    shared, out = torch.randn(ROWS, SIZE, device=device), torch.empty(ROWS, SIZE, device=device)
    op(outputs, weights, out, shared=shared, weighed=False)
    first, second, third = outputs.unflatten(0, (ROWS, CHOSEN)).unbind(1)
    assert torch.equal(out, first + second + third + shared)
    op(outputs, weights, out, weighed=False)
    assert torch.equal(out, first + second + third)


@pytest.mark.parametrize("op", [combine_experts, combine_experts_reference])
def test_parts_of_a_rank_have_no_residual(device: torch.device, op) -> None:
    """Sums run by rising expert: the third term is lost in the first two, and then they cancel."""
    outputs = torch.tensor([[1e8], [-1e8], [1.0]], device=device).repeat(1, 8)
    out = torch.full((1, 8), torch.nan, device=device)
    op(outputs, torch.ones(1, 3, device=device), out)
    assert (out == 1).all()
    op(outputs[[0, 2, 1]].contiguous(), torch.ones(1, 3, device=device), out)
    assert (out == 0).all()
