"""Rows of `kv_codes` in kernels: scales, codes, and the numbers that they stand for.

Codes are made of integers alone, so that any device, and the interpreter, makes the same. Products are of the numbers
alone, keys' in float16 and values' in bfloat16: scales of keys multiply scores, those of values weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import INTERPRETED
from slipstream_kernels.ops.gpu.rounding import rounded
from slipstream_kernels.ops.kv_cache.kv_codes import Fp8Rows, KVRows

_LARGEST = tl.constexpr(448.0)
_INFINITY = tl.constexpr(0x7F800000)
_NAN = tl.constexpr(0x7F)
_NAN_IS_480 = tl.constexpr(INTERPRETED)
"""Whether e4m3's NaN is read as the number that its bits would be: so the interpreter does."""
_LEAST_NORMAL = tl.constexpr(2.0**-6)
_SMALL, _SMALL_BITS = tl.constexpr(2.0**14), tl.constexpr(0x46800000)
"""A number whose last bit is worth 2^-9: what is added to it is rounded to numbers of e4m3 below _LEAST_NORMAL."""
_BIASES = tl.constexpr(127 - 7)
_LEAST_UNIT, _LARGEST_UNIT = tl.constexpr(15), tl.constexpr(254)
"""Exponent fields of a row's largest element between which its unit and that one's reciprocal are normal numbers."""
_LEAST_EXPONENT, _LARGEST_EXPONENT = tl.constexpr(127 - 100), tl.constexpr(127 + 119)


@triton.jit
def magnitude_bits(x: tl.tensor) -> tl.tensor:
    """int32 bits of |x|, which order float32 numbers; those of a NaN are the largest."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def own_exponent(largest: tl.tensor) -> tl.tensor:
    """int32 exponent field of the scale of rows whose largest `magnitude_bits` are given."""
    exponent = ((tl.minimum(largest, _INFINITY) + 0x1FFFFF) >> 23) - 8
    return tl.minimum(tl.maximum(exponent, _LEAST_EXPONENT), _LARGEST_EXPONENT)


@triton.jit
def power(exponent: tl.tensor) -> tl.tensor:
    """float32 number of an exponent field."""
    return (exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def codes_of(x: tl.tensor, reciprocal: tl.tensor) -> tl.tensor:
    """uint8 codes of float32 elements, by the reciprocal of their scale."""
    magnitude = tl.minimum(tl.abs(x * reciprocal), _LARGEST)
    bits = magnitude.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (_BIASES << 3)
    small = (magnitude + _SMALL).to(tl.int32, bitcast=True) - _SMALL_BITS
    code = tl.where(magnitude < _LEAST_NORMAL, small, normal) | ((x.to(tl.int32, bitcast=True) >> 24) & 0x80)
    return tl.where(magnitude_bits(x) < _INFINITY, code, _NAN).to(tl.uint8)


@triton.jit
def numbers_of(codes: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """float16 or bfloat16 numbers of codes, without their scales: exact in either."""
    number = codes.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    if _NAN_IS_480:
        number = tl.where((codes & _NAN) == _NAN, float("nan"), number)
    return as_numbers(number, dtype)


@triton.jit
def as_numbers(x: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """float16 or float32 `x` as float16 or bfloat16."""
    return x.to(tl.float16) if dtype == tl.float16 else rounded(x.to(tl.float32), tl.bfloat16)


@triton.jit
def halved(query: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """float16 of bfloat16 rows [columns, head_dim], for products with numbers of keys, and float32 units [columns].

    A row is its float16 numbers times its unit, the power of two that has the largest of them between 2^14 and 2^15, or
    2^-126: elements keep all their bits down to 2^-31 of a largest one that is no less than 2^-112.
    """
    largest = tl.max(magnitude_bits(query.to(tl.float32)), 1) >> 23
    exponent = tl.minimum(tl.maximum(largest, _LEAST_UNIT), _LARGEST_UNIT)
    # Fields of a power of two and of its reciprocal add up to 254; 2^14 more leave the largest below 2^15.
    return (query.to(tl.float32) * power(268 - exponent)[:, None]).to(tl.float16), power(exponent - 14)


@triton.jit
def coded_operands(
    query: tl.tensor,
    key_scales: tl.tensor | None,
    value_scales: tl.tensor | None,
    kv_head: tl.tensor,
    head_stride: int,
    HEAD_DIM: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Query and units as of `halved`, and where a KV head's scales begin; the query and anything beside bfloat16 rows.

    head_stride: elements from one head's codes to the next one's.
    """
    if key_scales is None:
        return query, query, query, query
    else:  # noqa: RET505  what does not compile must not be looked at
        first = kv_head.to(tl.int64) * (head_stride // HEAD_DIM)
        half, units = halved(query)
        return half, units, key_scales + first, value_scales + first


@dataclass(frozen=True, slots=True)
class RowPointers:
    """What a kernel takes of keys or values: codes and scales, or bfloat16 rows and None.

    fixed, reciprocal: the scale that rows are written with, both 0 for each row's own.
    """

    rows: torch.Tensor
    scales: torch.Tensor | None
    fixed: float = 0.0
    reciprocal: float = 0.0


def pointers_of(rows: KVRows) -> RowPointers:
    """Of keys or values as ops take them."""
    if not isinstance(rows, Fp8Rows):
        return RowPointers(rows, None)
    reciprocal = float(np.float32(1) / np.float32(rows.fixed)) if rows.fixed else 0.0
    return RowPointers(rows.codes, rows.scales, rows.fixed, reciprocal)
