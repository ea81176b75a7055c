"""Rows of `kv_codes` in kernels: scales, codes, and the numbers that they stand for.

Codes are made of integers alone, so that any device, and the interpreter, makes the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.rounding import rounded
from slipstream_kernels.ops.kv_cache.kv_codes import Fp8Rows, KVRows

_LARGEST = tl.constexpr(448.0)
_INFINITY = tl.constexpr(0x7F800000)
_NAN = tl.constexpr(0x7F)
_LEAST_NORMAL = tl.constexpr(2.0**-6)
_SMALL, _SMALL_BITS = tl.constexpr(2.0**14), tl.constexpr(0x46800000)
"""A number whose last bit is worth 2^-9: what is added to it is rounded to numbers of e4m3 below _LEAST_NORMAL."""
_BIASES = tl.constexpr(127 - 7)
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
def numbers_of(codes: tl.tensor, scales: tl.tensor) -> tl.tensor:
    """bfloat16 numbers that codes [rows, head_dim] stand for; float32 scales [rows]."""
    return rounded(codes.to(tl.float8e4nv, bitcast=True).to(tl.float32) * scales[:, None], tl.bfloat16)


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
