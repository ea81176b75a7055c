"""Codes as they lie in a `PackedWeight`, decoded to a tile of the bfloat16 weight: `ops.quantised_weight.decode`.

The product is float32's, rounded once to bfloat16. Codes, and their differences from zero points, are exact in float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.rounding import rounded

ROWS = 64
"""Of a tile: eight units."""


@triton.jit
def words_at(
    codes: tl.tensor, first: tl.tensor, units: tl.tensor, chunk: tl.tensor, chunks: tl.tensor, CHUNKS: tl.constexpr
) -> tl.tensor:
    """int32 [CHUNKS * 1024]: codes of ROWS rows from unit `first` on and CHUNKS chunks from `chunk` on, else 0."""
    n = tl.arange(0, CHUNKS * 1024)
    unit = first + n // 128 % 4 * 2 + n // (512 * CHUNKS)
    column = chunk + n // 512 % CHUNKS
    at = codes + (unit.to(tl.int64) * chunks + column) * 128 + n % 128
    return tl.load(at, mask=(unit < units) & (column < chunks), other=0)


@triton.jit
def groups_at(
    groups: tl.tensor,
    first: tl.tensor,
    units: tl.tensor,
    chunk: tl.tensor,
    count: tl.tensor,
    CHUNKS: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
) -> tl.tensor:
    """[CHUNKS * 1024]: the scale, or the zero point, of each of the words; `count`: groups of a row."""
    n = tl.arange(0, CHUNKS * 1024)
    unit = first + n // 128 % 4 * 2 + n // (512 * CHUNKS)
    group = (chunk + n // 512 % CHUNKS) * COLUMNS // GROUP if GROUP > 0 else n * 0
    at = groups + group * (units * 8) + unit * 8 + n // 16 % 8
    return tl.load(at, mask=(unit < units) & (group < count), other=0)


@triton.jit
def _plane(
    words: tl.tensor,
    scales: tl.tensor,
    zeros: tl.tensor,
    NUMBER: tl.constexpr,
    RAISED: tl.constexpr,
    PLANE: tl.constexpr,
) -> tl.tensor:
    """bfloat16 of the codes at one place of each word. Of e2m1, scales hold the exponents of both halves of a word."""
    bits: tl.constexpr = 4 if NUMBER == "int4" or NUMBER == "e2m1" else 8
    code = (words >> (bits * PLANE)) & ((1 << bits) - 1)
    if NUMBER == "e2m1":
        # The bits of e2m1 are those of e5m2 but for its further exponents, whose bias is greater by 14.
        wide = ((code & 8) << 4) | ((code & 7) << 1)
        exponent = ((scales >> (8 * (PLANE // 4))) & 0xFF) - RAISED
        scale = (exponent << 23).to(tl.float32, bitcast=True)
        return rounded(wide.to(tl.uint8).to(tl.float8e5, bitcast=True).to(tl.float32) * 16384.0 * scale, tl.bfloat16)
    if NUMBER == "e4m3":
        return rounded(code.to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32) * scales, tl.bfloat16)
    return rounded((code.to(tl.float32) - zeros) * scales, tl.bfloat16)


@triton.jit
def decoded_tile(
    words: tl.tensor,
    scales: tl.tensor,
    zeros: tl.tensor,
    NUMBER: tl.constexpr,
    PAIRED: tl.constexpr,
    CHUNKS: tl.constexpr,
) -> tl.tensor:
    """bfloat16 [ROWS, columns] of the words that `words_at` loads, rows and columns in order.

    scales of e2m1: int32, the exponents of a row's 32 columns each, from the lowest byte on, 127 too large, and where
    PAIRED by 126 more.
    """
    raised: tl.constexpr = 126 if PAIRED else 0
    if NUMBER == "e2m1":
        scales = scales >> (tl.arange(0, CHUNKS * 1024) % 4 // 2 * 16)
    elif PAIRED:
        scales = (scales << 16).to(tl.float32, bitcast=True)
    low = tl.join(_plane(words, scales, zeros, NUMBER, raised, 0), _plane(words, scales, zeros, NUMBER, raised, 2))
    high = tl.join(_plane(words, scales, zeros, NUMBER, raised, 1), _plane(words, scales, zeros, NUMBER, raised, 3))
    if NUMBER == "int4" or NUMBER == "e2m1":
        more = tl.join(_plane(words, scales, zeros, NUMBER, raised, 4), _plane(words, scales, zeros, NUMBER, raised, 6))
        low = tl.permute(tl.join(low, more), (0, 2, 1))
        more = tl.join(_plane(words, scales, zeros, NUMBER, raised, 5), _plane(words, scales, zeros, NUMBER, raised, 7))
        high = tl.permute(tl.join(high, more), (0, 2, 1))
    places: tl.constexpr = 4 if NUMBER == "int4" or NUMBER == "e2m1" else 2
    tile = tl.reshape(tl.join(low, high), (2, CHUNKS, 4, 8, 4, 2, 2, places, 2))
    # (half, chunk, warp, row, c, p, e, s, h) to (warp, half, row; chunk, p, s, h, c, e)
    return tl.reshape(tl.permute(tile, (2, 0, 3, 1, 5, 7, 8, 4, 6)), (64, CHUNKS * 32 * places))
