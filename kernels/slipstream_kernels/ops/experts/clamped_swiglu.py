"""The gate of experts of gpt-oss: min(gate, limit) sigmoid(1.702 min(gate, limit)) (1 + up), up within the limit.

Source: transformers, models/gpt_oss/modeling_gpt_oss.py, `GptOssExperts._apply_gate`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.jit.intrinsics import pointer_f32
from slipstream_kernels.ops.elementary import exp

SLOPE = 1.702
_SLOPE, _ONE = np.float32(SLOPE), np.float32(1)


@kernel
def clamped_swiglu_row(gate: int, up: int, size: int, limit: Any, out: int) -> None:
    """One row: addresses of float32 gate, up, out, all of `size`; float32 limit. NaN stays NaN."""
    gates, ups, target = pointer_f32(gate), pointer_f32(up), pointer_f32(out)
    for i in range(size):
        x, y = gates[i], ups[i]
        x = min(x, limit)
        y = limit if y > limit else max(y, -limit)
        target[i] = x / (_ONE + exp(-_SLOPE * x)) * (y + _ONE)


@kernel
def _clamped_swiglu(gate_up: int, rows: int, size: int, limit: Any, out: int) -> None:
    for row in range(rows):
        gate = gate_up + row * size * 8
        clamped_swiglu_row(gate, gate + size * 4, size, limit, out + row * size * 4)


def clamped_swiglu(gate_up: npt.NDArray[np.float32], limit: float) -> npt.NDArray[np.float32]:
    """float32 [rows, 2 n], the gates first, to float32 [rows, n]."""
    gate_up = np.ascontiguousarray(gate_up)
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = np.empty((rows, size), np.float32)
    _clamped_swiglu(gate_up.ctypes.data, rows, size, np.float32(limit), out.ctypes.data)
    return out


def clamped_swiglu_reference(gate_up: torch.Tensor, limit: float) -> torch.Tensor:
    """The same in torch."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate = gate.clamp(max=limit)
    return gate * torch.sigmoid(SLOPE * gate) * (up.clamp(-limit, limit) + 1)
