"""Rotary position embedding (arXiv 2104.09864) in the half-split layout."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.jit.intrinsics import pointer_f32


@kernel
def rotate_head(x: int, table_row: int, head_dim: int, out: int) -> None:
    """One head of one row: addresses of float32 x, out [head_dim] and the table's row; out may be x."""
    source, target, table = pointer_f32(x), pointer_f32(out), pointer_f32(table_row)
    half = head_dim // 2
    for i in range(half):
        a, b = source[i], source[half + i]
        target[i] = a * table[i] - b * table[half + i]
        target[half + i] = b * table[i] + a * table[half + i]


@kernel
def _rotary(
    x: int, rows: int, heads: int, head_dim: int, table: int, positions: npt.NDArray[np.int32], out: int
) -> None:
    for row in range(rows):
        for head in range(heads):
            offset = (row * heads + head) * head_dim * 4
            rotate_head(x + offset, table + positions[row] * head_dim * 4, head_dim, out + offset)


def rotary(
    x: npt.NDArray[np.float32], positions: npt.NDArray[np.int32], table: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Rotate float32 x [rows, heads, head_dim] by the table's rows at int32 positions [rows]."""
    x = np.ascontiguousarray(x)
    out = np.empty_like(x)
    rows, heads, head_dim = x.shape
    _rotary(x.ctypes.data, rows, heads, head_dim, table.ctypes.data, positions, out.ctypes.data)
    return out


def rotary_reference(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """The same in torch."""
    cosines, sines = table[positions.long()].unsqueeze(1).chunk(2, dim=-1)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cosines - b * sines, b * cosines + a * sines], dim=-1)
