"""Queries times the factor of their position, see `slipstream_kernels.ops.query_temperature`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.rounding import rounded

_BLOCK = 1024


@triton.jit
def _scale_queries(q: tl.tensor, positions: tl.tensor, factors: tl.tensor, size: int, BLOCK: tl.constexpr) -> None:
    release_next()
    row = tl.program_id(0).to(tl.int64)
    factor = tl.load(factors + tl.load(positions + row))
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    wait_for_previous()
    at = q + row * size + columns
    scaled = tl.load(at, mask=inside, other=0.0).to(tl.float32) * factor
    tl.store(at, rounded(scaled, q.dtype.element_ty), mask=inside)


def scale_queries(q: torch.Tensor, positions: torch.Tensor, factors: torch.Tensor) -> None:
    """q[row] *= factors[positions[row]], in place, rounded once.

    bfloat16 q [rows, heads, head_dim], contiguous; int32 positions [rows]; float32 factors [positions]. No kernel of
    the same pass writes the latter two: they are read while those may still run.
    """
    rows, size = len(q), q.shape[1] * q.shape[2]
    assert q.is_contiguous()
    launch(_scale_queries, (rows, triton.cdiv(size, _BLOCK)), q, positions, factors, size, BLOCK=_BLOCK)


def scale_queries_reference(q: torch.Tensor, positions: torch.Tensor, factors: torch.Tensor) -> None:
    """The same in torch."""
    q.copy_(q.float() * factors[positions.long()][:, None, None])
