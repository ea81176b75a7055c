"""Elementary functions made of additions, multiplications and bit operations alone.

Their result depends on the argument only: not on the machine's mathematical library, nor on whether the compiler
put the element into a vector. Products are never contracted with sums.
"""

from __future__ import annotations

import numpy as np

from slipstream_kernels.intrinsics import bits_of_double, double_of_bits, float_of_bits
from slipstream_kernels.jit import kernel

_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)
"""ln 2 rounded to 10 bits, so that its product with a small integer is exact."""
_LN2_LOW = np.float32(-2.12194440054690583e-4)
_ROUND = np.float32(12582912.0)
"""1.5 * 2^23: adding and subtracting it rounds to the nearest integer."""
_LOWEST, _HIGHEST = np.float32(-87.0), np.float32(88.0)
_ONE, _HALF = np.float32(1), np.float32(0.5)
_C3, _C4, _C5, _C6, _C7 = (np.float32(1 / n) for n in (6, 24, 120, 720, 5040))

_LN2 = 0.6931471805599453
_SQRT_HALF_BITS = np.uint64(0x3FE6A09E667F3BCD)
_EXPONENT_SHIFT = np.uint64(52)


@kernel
def exp(x: np.float32) -> np.float32:
    """e^x in float32 to within 2 units in the last place; x is clamped to [-87, 88]."""
    x = min(max(x, _LOWEST), _HIGHEST)
    n = (x * _LOG2_E + _ROUND) - _ROUND
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    tail = _C3 + r * (_C4 + r * (_C5 + r * (_C6 + r * _C7)))
    power = float_of_bits(np.uint32((np.int32(n) + np.int32(127)) << np.int32(23)))
    return (_ONE + (r + r * r * (_HALF + r * tail))) * power


@kernel
def log(x: float) -> float:
    """Natural logarithm of a positive normal float64, relative error below 1e-13.

    x = m 2^e with m in [sqrt(1/2), sqrt(2)); log m = 2 artanh((m - 1) / (m + 1)) by its power series.
    """
    shifted = bits_of_double(x) - _SQRT_HALF_BITS
    exponent = np.int64(shifted) >> np.int64(52)
    m = double_of_bits(bits_of_double(x) - (np.uint64(exponent) << _EXPONENT_SHIFT))
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    series = 1 / 13 + z * (1 / 15 + z * (1 / 17 + z * (1 / 19)))
    series = 1 / 3 + z * (1 / 5 + z * (1 / 7 + z * (1 / 9 + z * (1 / 11 + z * series))))
    return np.float64(exponent) * _LN2 + (2.0 * s + 2.0 * s * (z * series))
