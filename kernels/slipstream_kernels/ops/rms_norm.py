"""Root mean square normalisation (arXiv 1910.07467)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.jit.intrinsics import dot, pointer_f32


@kernel
def rms_norm_row(x: int, weight: int, size: int, eps: float, out: int) -> None:
    """One row: addresses of float32 x, weight, out, all of `size`; out may be x."""
    source, gain, target = pointer_f32(x), pointer_f32(weight), pointer_f32(out)
    mean = dot(x, x, size) / np.float32(size)
    scale = np.float32(1) / np.float32(math.sqrt(mean + np.float32(eps)))
    for i in range(size):
        target[i] = source[i] * scale * gain[i]


@kernel
def _rms_norm(x: int, rows: int, weight: int, size: int, eps: float, out: int) -> None:
    for row in range(rows):
        rms_norm_row(x + row * size * 4, weight, size, eps, out + row * size * 4)


def rms_norm(x: npt.NDArray[np.float32], weight: npt.NDArray[np.float32], eps: float) -> npt.NDArray[np.float32]:
    """x / sqrt(mean(x^2) + eps) * weight by row: float32 x [rows, size], weight [size], size a multiple of 16."""
    x = np.ascontiguousarray(x)
    out = np.empty_like(x)
    rows, size = x.shape
    if size % 16 or weight.shape != (size,):
        raise ValueError(f"x is {x.shape}, weight {weight.shape}; rows must have the same multiple of 16")
    _rms_norm(x.ctypes.data, rows, weight.ctypes.data, size, eps, out.ctypes.data)
    return out


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The same in torch."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight
