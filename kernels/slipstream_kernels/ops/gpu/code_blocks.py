"""Blocks of a KV cache of 8 bits on their way to products: a block ahead, as codes in registers.

A thread holds the codes of the next block while it computes one: nothing is copied in shared memory, and no block waits
for memory behind the products of the one before it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.fp8_rows import as_numbers, numbers_of
from slipstream_kernels.ops.gpu.launch import INTERPRETED

_WORD = tl.constexpr(4)
"""Codes of an int32."""
_COMPILED = tl.constexpr(not INTERPRETED)


@triton.jit
def load_codes(
    rows: tl.tensor, scales: tl.tensor, slots: tl.tensor, HEAD_DIM: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Codes, as int32 [BLOCK, HEAD_DIM / 4], and float32 scales [BLOCK], of slots of one head's keys or values."""
    width: tl.constexpr = HEAD_DIM // _WORD
    words = slots.to(tl.int64)[:, None] * width + tl.arange(0, width)[None, :]
    return tl.load(rows.to(tl.pointer_type(tl.int32), bitcast=True) + words), tl.load(scales + slots)


@triton.jit
def _numbers(words: tl.tensor) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """float16 numbers of the codes in words, by their places; e4m3 is exact in float16."""
    if _COMPILED:
        a, b, c, d = tl.inline_asm_elementwise(
            """{
            .reg .b16 low, high;
            .reg .b32 first, second;
            mov.b32 {low, high}, $4;
            cvt.rn.f16x2.e4m3x2 first, low;
            cvt.rn.f16x2.e4m3x2 second, high;
            mov.b32 {$0, $1}, first;
            mov.b32 {$2, $3}, second;
            }""",
            "=h,=h,=h,=h,r",
            [words],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=1,
        )
        return a, b, c, d
    else:  # noqa: RET505  what does not compile must not be looked at
        a, b, c, d = (words & 0xFF), (words >> 8) & 0xFF, (words >> 16) & 0xFF, (words >> 24) & 0xFF
        return (
            numbers_of(a.to(tl.uint8), tl.float16),
            numbers_of(b.to(tl.uint8), tl.float16),
            numbers_of(c.to(tl.uint8), tl.float16),
            numbers_of(d.to(tl.uint8), tl.float16),
        )


@triton.jit
def decoded(words: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """[BLOCK, HEAD_DIM] as of `numbers_of`, of codes as of `load_codes`."""
    a, b, c, d = _numbers(words)
    shape: tl.constexpr = (words.shape[0], words.shape[1] * _WORD)
    return as_numbers(tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), shape), dtype)
