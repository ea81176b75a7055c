"""Linear layers that the library computes, plain and gated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from slipstream_kernels.ops.gpu.cublaslt.product import ALIGNMENT, Problem
from slipstream_kernels.ops.gpu.silu_mul import silu_mul


class LibraryLayer(Protocol):
    """What stands in a tile's place."""

    def run(
        self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, residual: torch.Tensor | None = None
    ) -> None:
        """As `linear`, or as `gated_linear`, without a bias."""
        ...


@dataclass(frozen=True, slots=True)
class GatedProduct:
    """`gated_linear` by a product that leaves its float32 sums, and a kernel that gates them as a tile does."""

    product: LibraryLayer

    def run(
        self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, residual: torch.Tensor | None = None
    ) -> None:
        """Take memory for the sums from torch's allocator, a graph's own while one is captured."""
        assert residual is None
        sums = torch.empty(len(x), len(weight), dtype=torch.float32, device=x.device)
        self.product.run(x, weight, sums)
        silu_mul(sums, out)


class Unlaunched:
    """A layer while kernels are compiled ahead, when nothing is launched and the library has nothing to compile."""

    def run(
        self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, residual: torch.Tensor | None = None
    ) -> None:
        pass


def problem_of(
    x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, residual: torch.Tensor | None, *, gated: bool
) -> Problem | None:
    """What the library is asked for; None where operands are not laid out as it wants them."""
    tensors = (x, weight, out) if residual is None else (x, weight, out, residual)
    if any(t.data_ptr() % ALIGNMENT or t.stride(0) * t.element_size() % ALIGNMENT for t in tensors):
        return None
    float32 = gated or out.dtype == torch.float32
    if residual is not None and (float32 or residual.stride(1) != 1):
        return None
    return Problem(
        outputs=len(weight),
        inputs=x.shape[1],
        rows=len(x),
        x_stride=x.stride(0),
        out_stride=len(weight) if gated else out.stride(0),
        residual_stride=None if residual is None else residual.stride(0),
        float32=float32,
    )
