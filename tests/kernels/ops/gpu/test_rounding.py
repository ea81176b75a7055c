from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch
from slipstream_kernels.ops.gpu.rounding import rounded


@triton.jit
def _copy(x, out, size: tl.constexpr):
    places = tl.arange(0, size)
    tl.store(out + places, rounded(tl.load(x + places), out.dtype.element_ty))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rounds_to_nearest_even(device, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(1024, device=device) * 10 ** torch.linspace(-30, 30, 1024, device=device)
    ties = torch.arange(0x3F808000, 0x3FA08000, 0x10000, dtype=torch.int32, device=device)
    x[: len(ties)] = ties.view(torch.float32)
    x[-4:] = torch.tensor([torch.inf, -torch.inf, 0.0, torch.nan])
    out = torch.full((1024,), torch.nan, dtype=dtype, device=device)
    launch(_copy, (1,), x, out, size=1024)
    assert torch.equal(out[:-1], x[:-1].to(dtype))
    assert out[-1].isnan()
