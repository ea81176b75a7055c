"""The gate of a gated feed-forward layer: silu(gate) * up."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.jit.intrinsics import pointer_f32
from slipstream_kernels.ops.elementary import exp

_ONE = np.float32(1)


@kernel
def silu_mul_row(gate: int, up: int, size: int, out: int) -> None:
    """One row: addresses of float32 gate, up, out, all of `size`."""
    gates, ups, target = pointer_f32(gate), pointer_f32(up), pointer_f32(out)
    for i in range(size):
        target[i] = gates[i] / (_ONE + exp(-gates[i])) * ups[i]


@kernel
def _silu_mul(gate_up: int, rows: int, size: int, out: int) -> None:
    for row in range(rows):
        gate = gate_up + row * size * 8
        silu_mul_row(gate, gate + size * 4, size, out + row * size * 4)


def silu_mul(gate_up: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """float32 [rows, 2 n], the gates first, to float32 [rows, n]."""
    gate_up = np.ascontiguousarray(gate_up)
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = np.empty((rows, size), np.float32)
    _silu_mul(gate_up.ctypes.data, rows, size, out.ctypes.data)
    return out


def silu_mul_reference(gate_up: torch.Tensor) -> torch.Tensor:
    """The same in torch."""
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up
