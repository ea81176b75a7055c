"""The gate of a gated feed-forward layer after one matrix product: silu(gate) * up."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.gate_up import GROUP, separate_gate_up
from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.rounding import rounded

_BLOCK = 1024


@triton.jit
def _silu_mul(gate_up: tl.tensor, out: tl.tensor, size: int, BLOCK: tl.constexpr, GROUP: tl.constexpr) -> None:
    release_next()
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    gate_at = gate_up + row * 2 * size + columns // GROUP * (2 * GROUP) + columns % GROUP
    gate = tl.load(gate_at, mask=inside).to(tl.float32)
    up = tl.load(gate_at + GROUP, mask=inside).to(tl.float32)
    decay = tl.exp(-tl.abs(gate))  # at most 1: no gate overflows
    gated = gate * tl.where(gate >= 0, 1.0, decay) / (1.0 + decay) * up
    tl.store(out + row * size + columns, rounded(gated, out.dtype.element_ty), mask=inside)


def silu_mul(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """silu(gate) * up in float32, rounded once: bfloat16 or float32 gate_up [rows, 2 n], bfloat16 out [rows, n].

    Both are contiguous; columns of `gate_up` are in the order of gate_up.py. For products that are at hand already;
    `gated_linear` gates its own float32 sums, to the same bits as this op where it is given those.
    """
    rows, size = out.shape
    launch(_silu_mul, (rows, triton.cdiv(size, _BLOCK)), gate_up, out, size, BLOCK=_BLOCK, GROUP=GROUP)


def silu_mul_reference(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """The same in torch."""
    gate, up = separate_gate_up(gate_up.float(), dim=-1).chunk(2, dim=-1)
    out.copy_(torch.nn.functional.silu(gate) * up)
