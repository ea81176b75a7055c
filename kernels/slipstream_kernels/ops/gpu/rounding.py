"""Rounding of float32 results to the dtype they are stored in."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import INTERPRETED

_CAST_TRUNCATES = tl.constexpr(INTERPRETED)


@triton.jit
def rounded(x: tl.tensor, dtype: tl.constexpr) -> Any:
    """float32 `x` as bfloat16 or float32, to nearest even. The interpreter's own cast to bfloat16 rounds to zero."""
    if _CAST_TRUNCATES and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        # Adding could carry a NaN into another number; x == x is false for NaN alone.
        nearest = tl.where(x == x, bits + 0x7FFF + ((bits >> 16) & 1), bits)
        return (nearest >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return x.to(dtype)
