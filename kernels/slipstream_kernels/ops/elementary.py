"""Elementary functions made of additions, multiplications and bit operations alone.

Their result depends on the argument only: not on the machine's mathematical library, nor on whether the compiler
put the element into a vector. Products are never contracted with sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from slipstream_kernels.jit import intrinsics as llvm

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440054690583e-4
"""ln 2 as a number of 10 bits, whose product with a small integer is exact, and the rest."""
_ROUND = 12582912.0
"""1.5 * 2^23: adding and subtracting it rounds a float32 to the nearest integer."""
_LOWEST, _HIGHEST = -87.0, 88.0

_LN2 = 0.6931471805599453
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD


def emit_exp(builder: Any, x: Any) -> Any:
    """e^x of a float32, or of each of a vector of them, to within 2 units in the last place; x is clamped to [-87, 88].

    x = n ln 2 + r; e^r by its Taylor series of degree 7.
    """
    kind, integers = x.type, llvm.like(x.type, llvm.I32)
    for bound, side in ((_LOWEST, ">"), (_HIGHEST, "<")):
        limit = llvm.fill(kind, float32(bound))
        x = builder.select(builder.fcmp_ordered(side, x, limit), x, limit)
    magic = llvm.fill(kind, _ROUND)
    n = builder.fsub(builder.fadd(builder.fmul(x, llvm.fill(kind, float32(_LOG2_E))), magic), magic)
    r = builder.fsub(x, builder.fmul(n, llvm.fill(kind, float32(_LN2_HIGH))))
    r = builder.fsub(r, builder.fmul(n, llvm.fill(kind, float32(_LN2_LOW))))
    series = llvm.fill(kind, float32(1 / 5040))
    for factorial in (720, 120, 24, 6, 2):
        series = builder.fadd(llvm.fill(kind, float32(1 / factorial)), builder.fmul(r, series))
    power = builder.add(builder.fptosi(n, integers), llvm.fill(integers, 127))
    scale = builder.bitcast(builder.shl(power, llvm.fill(integers, 23)), kind)
    tail = builder.fadd(r, builder.fmul(builder.fmul(r, r), series))
    return builder.fmul(builder.fadd(llvm.fill(kind, 1.0), tail), scale)


def float32(value: float) -> float:
    """The nearest float32, as the constants of float32 code must be given."""
    return float(np.float32(value))


def emit_log(builder: Any, x: Any) -> Any:
    """Natural logarithm of a positive normal float64, or of each of a vector of them; relative error below 1e-14.

    x = m 2^e with m in [sqrt(1/2), sqrt(2)); log m = 2 artanh(s), s = (m - 1) / (m + 1), by its power series.
    """
    bits = builder.bitcast(x, llvm.like(x.type, llvm.I64))
    exponent = builder.ashr(builder.sub(bits, llvm.fill(bits.type, _SQRT_HALF_BITS)), llvm.fill(bits.type, 52))
    m = builder.bitcast(builder.sub(bits, builder.shl(exponent, llvm.fill(bits.type, 52))), x.type)
    one = llvm.fill(x.type, 1.0)
    s = builder.fdiv(builder.fsub(m, one), builder.fadd(m, one))
    z = builder.fmul(s, s)
    series = llvm.fill(x.type, 1 / 19)
    for power in range(17, 1, -2):
        series = builder.fadd(llvm.fill(x.type, 1 / power), builder.fmul(z, series))
    twice = builder.fadd(s, s)
    log_m = builder.fadd(twice, builder.fmul(twice, builder.fmul(z, series)))
    turns = builder.sitofp(builder.trunc(exponent, llvm.like(x.type, llvm.I32)), x.type)
    return builder.fadd(builder.fmul(turns, llvm.fill(x.type, _LN2)), log_m)


def _emit_exp_total(builder: Any, values: Any) -> Any:
    x, size, shift = values
    wide = llvm.like(llvm.VECTOR, llvm.F64)
    shifts = llvm.splat(builder, shift)

    def body(index: Any, sums: list[Any]) -> list[Any]:
        weights = emit_exp(builder, builder.fsub(llvm.load_vector(builder, x, index), shifts))
        return [builder.fadd(sums[0], builder.fpext(weights, wide))]

    return llvm.lane_sum(builder, llvm.loop(builder, size, llvm.LANES, [llvm.fill(wide, 0.0)], body)[0])


exp: Callable[[float], float] = llvm.define(
    types.float32(types.float32), lambda builder, values: emit_exp(builder, values[0]), 1
)
"""`emit_exp` of one float32."""
exp_total: Callable[[int, int, float], float] = llvm.define(
    types.float64(types.int64, types.int64, types.float32), _emit_exp_total, 3
)
"""Sum of exp(x - shift) over float32 x (address, size a positive multiple of 16) in 16 float64 chains."""
log: Callable[[float], float] = llvm.define(
    types.float64(types.float64), lambda builder, values: emit_log(builder, values[0]), 1
)
"""`emit_log` of one float64."""
