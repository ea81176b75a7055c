from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.prefetch import prefetch_weight


@triton.jit
def copy_after_prefetch(weight, out, size: int, block: tl.constexpr):
    release_next()
    prefetch_weight(weight, size * 2, tl.program_id(0), tl.num_programs(0))
    wait_for_previous()
    offsets = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + offsets, tl.load(weight + offsets, mask=offsets < size), mask=offsets < size)


def test_prefetched_memory_reads_as_before(device: torch.device) -> None:
    for size in (8, 1000, 400_000):
        weight = torch.randn(size, device=device).bfloat16()
        out = torch.full_like(weight, torch.nan)
        launch(copy_after_prefetch, (triton.cdiv(size, 65536),), weight, out, size, block=65536)
        assert torch.equal(out, weight)
