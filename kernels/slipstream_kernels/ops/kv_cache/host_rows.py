"""Rows of `kv_codes` on the CPU: written by kernels, and read in the midst of attention's sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from slipstream_kernels.jit import intrinsics as llvm
from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.jit.intrinsics import (
    address_f32,
    address_u8,
    float_bits,
    pointer_f32,
    pointer_u8,
    pointer_u32,
    widened,
)
from slipstream_kernels.ops.kv_cache.kv_codes import LARGEST, NAN

_SIGN, _INFINITY = 0x80000000, 0x7F800000
_LEAST_NORMAL = np.float32(2**-6)
_SMALL = np.float32(2**14)
"""Whose last bit is worth 2^-9: what is added to it is rounded to numbers of e4m3 below `_LEAST_NORMAL`."""
_SMALL_BITS = 0x46800000
_BIASES = 127 - 7
"""Between the exponents of float32 and of e4m3."""
_LARGEST = np.float32(LARGEST)


@kernel
def _code(number: Any, scaled: Any) -> int:
    """The code of a float32 `number` that the scale makes `scaled`."""
    bits: Any = np.int64(float_bits(number))
    if bits & 0x7FFFFFFF >= _INFINITY:
        return NAN
    magnitude = min(abs(scaled), _LARGEST)
    code: Any
    if magnitude < _LEAST_NORMAL:
        code = np.int64(float_bits(magnitude + _SMALL)) - _SMALL_BITS
    else:
        rest = np.int64(float_bits(magnitude))
        code = ((rest + 0x7FFFF + ((rest >> 20) & 1)) >> 20) - (_BIASES << 3)
    return int(code | ((bits & _SIGN) >> 24))


@kernel
def encode_row(row: int, size: int, fixed: Any, codes: int) -> Any:
    """Write the codes of a float32 row to `codes`; returns its float32 scale. Addresses.

    fixed: the float32 scale; 0: the row's own.
    """
    largest: Any
    exponent: Any
    scale: Any
    factor: Any
    words, numbers, out = pointer_u32(row), pointer_f32(row), pointer_u8(codes)
    if fixed > 0:
        scale, factor = fixed, np.float32(1) / fixed
    else:
        largest = np.int64(0)
        for i in range(size):
            largest = max(largest, np.int64(words[i]) & 0x7FFFFFFF)
        exponent = ((min(largest, _INFINITY) + 0x1FFFFF) >> 23) - 8
        exponent = min(max(exponent, 127 - 100), 127 + 119)
        own: Any = np.uint16(exponent << 7)
        reciprocal: Any = np.uint16((254 - exponent) << 7)
        scale, factor = widened(own), widened(reciprocal)
    for i in range(size):
        out[i] = np.uint8(_code(numbers[i], numbers[i] * factor))
    return scale


@kernel
def _encode_rows(
    rows: npt.NDArray[np.float32],
    fixed: Any,
    codes: npt.NDArray[np.uint8],
    scales: npt.NDArray[np.float32],
) -> None:
    size = rows.shape[1]
    for row in range(len(rows)):
        scales[row] = encode_row(address_f32(rows) + row * size * 4, size, fixed, address_u8(codes) + row * size)


def encode_rows(
    rows: npt.NDArray[np.float32], fixed: float = 0.0
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """Codes and scales of float32 rows [n, size]: those of `kv_codes.encode`."""
    codes, scales = np.empty(rows.shape, np.uint8), np.empty(len(rows), np.float32)
    _encode_rows(np.ascontiguousarray(rows), np.float32(fixed), codes, scales)
    return codes, scales


_WORDS = ir.VectorType(llvm.I32, llvm.LANES)
_BYTES = ir.VectorType(ir.IntType(8), llvm.LANES)


def _words(value: int) -> Any:
    return ir.Constant(_WORDS, [value] * llvm.LANES)


def load_scale(builder: Any, scales: Any, index: Any) -> Any:
    """The float32 at `index` of an address in every lane."""
    return llvm.splat(builder, builder.load(llvm.pointer(builder, scales, llvm.F32, index), align=4))


def load_decoded(builder: Any, codes: Any, index: Any, scale: Any) -> Any:
    """The vector that the codes from `index` of an address on stand for: the bits of `kv_codes.decode`.

    No operand is a subnormal number: a code without exponent is made 1.m * 2^-6, less 2^-6.
    """
    address = builder.inttoptr(builder.add(codes, index), _BYTES.as_pointer())
    code = builder.zext(builder.load(address, align=1), _WORDS)
    magnitude = builder.and_(code, _words(0x7F))
    fraction = builder.shl(magnitude, _words(20))
    normal = builder.bitcast(builder.add(fraction, _words(_BIASES << 23)), llvm.VECTOR)
    small = builder.bitcast(builder.or_(fraction, _words((_BIASES + 1) << 23)), llvm.VECTOR)
    small = builder.fsub(small, ir.Constant(llvm.VECTOR, [2.0**-6] * llvm.LANES))
    number = builder.select(builder.icmp_unsigned("<", magnitude, _words(8)), small, normal)
    bits = builder.bitcast(builder.fmul(number, scale), _WORDS)
    odd = builder.and_(builder.lshr(bits, _words(16)), _words(1))
    bits = builder.and_(builder.add(builder.add(bits, _words(0x7FFF)), odd), _words(0xFFFF0000))
    bits = builder.select(builder.icmp_unsigned("==", magnitude, _words(NAN)), _words(0x7FC00000), bits)
    sign = builder.shl(builder.and_(code, _words(0x80)), _words(24))
    return builder.bitcast(builder.or_(bits, sign), llvm.VECTOR)
