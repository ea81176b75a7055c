"""The gate of a gated feed-forward layer of Gemma: gelu(gate) * up, by tanh (arXiv 1606.08415, section 2)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.jit.intrinsics import pointer_f32
from slipstream_kernels.ops.elementary import exp

_ONE = np.float32(1)
SLOPE, CUBE = 2 * math.sqrt(2 / math.pi), 0.044715
"""(1 + tanh(z)) / 2 is 1 / (1 + exp(-2 z)): gelu(x) is x / (1 + exp(-SLOPE (x + CUBE x^3)))."""
_SLOPE, _CUBE = np.float32(SLOPE), np.float32(CUBE)


@kernel
def gelu_mul_row(gate: int, up: int, size: int, out: int) -> None:
    """One row: addresses of float32 gate, up, out, all of `size`."""
    gates, ups, target = pointer_f32(gate), pointer_f32(up), pointer_f32(out)
    for i in range(size):
        x = gates[i]
        target[i] = x / (_ONE + exp(-_SLOPE * (x + _CUBE * x * x * x))) * ups[i]


@kernel
def _gelu_mul(gate_up: int, rows: int, size: int, out: int) -> None:
    for row in range(rows):
        gate = gate_up + row * size * 8
        gelu_mul_row(gate, gate + size * 4, size, out + row * size * 4)


def gelu_mul(gate_up: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """float32 [rows, 2 n], the gates first, to float32 [rows, n]."""
    gate_up = np.ascontiguousarray(gate_up)
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = np.empty((rows, size), np.float32)
    _gelu_mul(gate_up.ctypes.data, rows, size, out.ctypes.data)
    return out


def gelu_mul_reference(gate_up: torch.Tensor) -> torch.Tensor:
    """The same in torch."""
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.gelu(gate, approximate="tanh") * up
