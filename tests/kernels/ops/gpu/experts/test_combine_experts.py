from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ops.gpu.experts.combine_experts import combine_experts, combine_experts_reference
from slipstream_kernels.ops.gpu.rms_norm import rms_norm

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


@pytest.mark.parametrize("size", [1040, 2048])
def test_the_next_norm_is_that_of_the_rounded_sum(device: torch.device, size: int) -> None:
    """The stream has the bits that it has without the norm."""
    torch.manual_seed(0)
    outputs, weights = torch.randn(ROWS * CHOSEN, size, device=device), torch.rand(ROWS, CHOSEN, device=device)
    x, norm = (torch.randn(*shape, device=device).bfloat16() for shape in ((ROWS, size), (size,)))
    shared, scores = torch.randn(ROWS, size, device=device), torch.randn(ROWS, device=device)
    plain, out, normed, alone = x.clone(), x.clone(), torch.empty_like(x), torch.empty_like(x)
    more = {"shared": shared, "scores": scores}
    combine_experts(outputs, weights, plain, residual=plain, **more)
    combine_experts(outputs, weights, out, residual=out, norm=norm, normed=normed, eps=1e-5, **more)
    assert torch.equal(out, plain)
    rms_norm(out, norm, alone, 1e-5)
    torch.testing.assert_close(normed, alone, rtol=2**-7, atol=1e-6)
    rows = slice(2, 4)
    part = torch.empty_like(normed[rows])
    combine_experts(
        outputs.unflatten(0, (ROWS, CHOSEN))[rows].flatten(0, 1), weights[rows], x[rows], residual=x[rows],
        shared=shared[rows], scores=scores[rows], norm=norm, normed=part, eps=1e-5,
    )  # fmt: skip
    assert torch.equal(part, normed[rows])


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
