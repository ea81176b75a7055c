"""What codes in registers decode to: `ops.quantised_weight.decode`, for the kernels.

The product is float32's, rounded once to bfloat16. Codes, and their differences from zero points, are exact in float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.rounding import rounded


@triton.jit
def decode_bytes(codes: tl.tensor, scales: tl.tensor, zeros: tl.tensor, E4M3: tl.constexpr) -> tl.tensor:
    """bfloat16 [n, columns] of uint8 codes: e4m3 without zero points, or int8. float32 scales, zeros [n, 1]."""
    if E4M3:
        return rounded(codes.to(tl.float8e4nv, bitcast=True).to(tl.float32) * scales, tl.bfloat16)
    return rounded((codes.to(tl.float32) - zeros) * scales, tl.bfloat16)


@triton.jit
def decode_plane(words: tl.tensor, scales: tl.tensor, zeros: tl.tensor, PLANE: tl.constexpr) -> tl.tensor:
    """bfloat16 [n, words] of the half bytes PLANE, 0 to 3, of int32 words. float32 scales, zeros [n, 1].

    Without a shift a half byte is 16^PLANE times as large, which the scale takes back: powers of two change no bit.
    """
    number = ((words & (0xF << (4 * PLANE))) | 0x4B000000).to(tl.float32, bitcast=True)
    unit: tl.constexpr = 16.0**PLANE
    return rounded((number - (zeros * unit + 8388608.0)) * (scales * (1.0 / unit)), tl.bfloat16)
