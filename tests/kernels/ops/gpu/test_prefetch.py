from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.prefetch import prefetch_rows


@triton.jit
def copy_after_prefetch(rows, out, height: int, ahead: int, width: int, block: tl.constexpr):
    release_next()
    lines = tl.arange(0, block)
    rows_at = rows + lines.to(tl.int64) * width
    prefetch_rows(rows_at, lines < height, ahead, width)
    wait_for_previous()
    for column in range(width):
        tl.store(out + lines * width + column, tl.load(rows_at + column, mask=lines < height), mask=lines < height)


@pytest.mark.parametrize(("height", "width"), [(3, 16), (5, 600)])
@pytest.mark.parametrize("ahead", [256, 1024])
def test_prefetched_rows_read_as_before(device: torch.device, height: int, width: int, ahead: int) -> None:
    rows = torch.randn(height, width, device=device).bfloat16()
    out = torch.full_like(rows, torch.nan)
    launch(copy_after_prefetch, (1,), rows, out, height, ahead, width, block=8)
    assert torch.equal(out, rows)
