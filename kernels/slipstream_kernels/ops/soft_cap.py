"""Soft bounds of scores and logits: cap * tanh(x / cap) (arXiv 2408.00118, section 2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.jit.intrinsics import pointer_f32
from slipstream_kernels.ops.elementary import exp

_ONE, _TWO = np.float32(1), np.float32(2)


@kernel
def soft_cap(x: Any, cap: Any) -> Any:
    """cap * tanh(x / cap) of float32; never beyond the cap, and the same for -x but for the sign."""
    if x != x:  # no number
        return x
    decay = exp(-_TWO * abs(x / cap))
    bound = cap * ((_ONE - decay) / (_ONE + decay))
    return bound if x >= 0 else -bound


@kernel
def soft_cap_row(x: int, size: int, cap: Any) -> None:
    """One row in place: the address of float32 [size]."""
    values = pointer_f32(x)
    for i in range(size):
        values[i] = soft_cap(values[i], cap)


@kernel
def _soft_cap(x: int, size: int, cap: Any) -> None:
    soft_cap_row(x, size, cap)


def soft_capped(x: npt.NDArray[np.float32], cap: float) -> npt.NDArray[np.float32]:
    """cap * tanh(x / cap) of a float32 array, by element."""
    out = np.array(x, np.float32, order="C")
    _soft_cap(out.ctypes.data, out.size, np.float32(cap))
    return out


def soft_capped_reference(x: torch.Tensor, cap: float) -> torch.Tensor:
    """The same in torch."""
    return cap * torch.tanh(x / cap)
