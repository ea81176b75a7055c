"""Linear layers by the vendor's library (cuBLAS through torch), for fast mode.

The library chooses its algorithm by the number of rows, so a row's bits may depend on the rows beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from slipstream_kernels.ops.gpu.silu_mul import silu_mul


def library_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> None:
    """x W^T + bias + residual with float32 sums: bfloat16 x [rows, K] (any row stride), weight [N, K], bias [N].

    `out` [rows, N] is bfloat16 or float32; a bfloat16 `residual` [rows, N] may be `out`. Float32 outputs take no
    addends. With both addends there is a rounding between them.
    """
    if out.dtype == torch.float32:
        if bias is not None or residual is not None:
            raise ValueError("float32 outputs of library_linear take no bias and no residual")
        _widened(x, weight, out)
        return
    addend = bias if residual is None else residual
    if addend is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(addend, x, weight.t(), out=out)
    if bias is not None and residual is not None:
        out += bias


def _widened(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    if x.is_cuda:
        torch.mm(x, weight.t(), out_dtype=torch.float32, out=out)
    else:  # torch stores the sums of bfloat16 products unrounded on CUDA alone
        torch.mm(x.float(), weight.float().t(), out=out)


@dataclass(frozen=True, slots=True)
class LibraryGatedLinear:
    """silu(x gate^T) * (x up^T), whose products pass through `workspace`: bfloat16, at least rows * 2 I elements."""

    workspace: torch.Tensor

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        """bfloat16 x [rows, K], weight [2 I, K] as for `gated_linear`, out [rows, I]; rounded before the gate too."""
        rows, columns = len(x), len(weight)
        gate_up = self.workspace.view(-1)[: rows * columns].view(rows, columns)
        library_linear(x, weight, gate_up)
        silu_mul(gate_up, out)
