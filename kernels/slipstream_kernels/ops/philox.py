"""The published noise: Gumbel variates from Philox4x32-10, a counter-based generator.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

    key     = (seed mod 2^32, seed div 2^32)
    counter = (vocabulary index, absolute position, choice index, 0)
    bits    = first of the four output words
    u       = ((bits >> 9) + 0.5) * 2^-23           exact in float32, never 0 or 1
    g       = the float32 nearest to -log(-log(u))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types

from slipstream_kernels.jit import intrinsics as llvm
from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.ops.elementary import emit_log

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = 0xFFFFFFFF
_LANES = 32
"""Indices computed side by side, enough to hide the latency of one chain of operations."""


def emit_philox(builder: Any, counter: Sequence[Any], key: Sequence[Any]) -> list[Any]:
    """Ten rounds on 32-bit words held in 64-bit integers, or in vectors of them."""
    kind = counter[0].type
    low, half = llvm.fill(kind, _LOW), llvm.fill(kind, 32)
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        products = [builder.mul(c, llvm.fill(kind, factor)) for c, factor in zip((c0, c2), MULTIPLIERS, strict=True)]
        high = [builder.lshr(product, half) for product in products]
        c0 = builder.and_(builder.xor(builder.xor(high[1], c1), k0), low)
        c2 = builder.and_(builder.xor(builder.xor(high[0], c3), k1), low)
        c3, c1 = (builder.and_(product, low) for product in products)
        k0, k1 = (
            builder.and_(builder.add(k, llvm.fill(kind, step)), low) for k, step in zip((k0, k1), WEYL, strict=True)
        )
    return [c0, c1, c2, c3]


def _emit_noise(builder: Any, index: Any, request: Sequence[Any]) -> Any:
    """float32 noise of 64-bit vocabulary indices; `request` holds k0, k1, position and choice."""
    kind = index.type
    k0, k1, position, choice = request
    bits = emit_philox(builder, [index, position, choice, llvm.fill(kind, 0)], [k0, k1])[0]
    doubles = llvm.like(kind, llvm.F64)
    whole = builder.trunc(builder.lshr(bits, llvm.fill(kind, 9)), llvm.like(kind, llvm.I32))
    u = builder.fmul(
        builder.fadd(builder.sitofp(whole, doubles), llvm.fill(doubles, 0.5)), llvm.fill(doubles, 2.0**-23)
    )
    minus = llvm.fill(doubles, -1.0)
    inner = builder.fmul(emit_log(builder, u), minus)
    return builder.fptrunc(builder.fmul(emit_log(builder, inner), minus), llvm.like(kind, llvm.F32))


def _noise_block(lanes: int) -> Callable[[int, int, int, int, int, int, int], None]:
    """Intrinsic (k0, k1, position, choice, ids, out, first): noise of ids[first : first + lanes]."""

    def emit(builder: Any, values: Any) -> None:
        *request, ids, out, first = values
        narrow = ir.VectorType(llvm.I32, lanes) if lanes > 1 else llvm.I32
        source = builder.bitcast(llvm.pointer(builder, ids, llvm.I32, first), narrow.as_pointer())
        index = builder.zext(builder.load(source, align=4), llvm.like(narrow, llvm.I64))
        words = [llvm.splat(builder, word, lanes) if lanes > 1 else word for word in request]
        noise = _emit_noise(builder, index, words)
        target = builder.bitcast(llvm.pointer(builder, out, llvm.F32, first), noise.type.as_pointer())
        builder.store(noise, target, align=4)

    return llvm.define(types.void(*[types.int64] * 7), emit, 7)


_noise_many, _noise_one = _noise_block(_LANES), _noise_block(1)


@kernel
def gumbel_row(seed: Any, choice: Any, position: Any, ids: int, count: int, out: int) -> None:
    """Noise of `count` vocabulary indices: addresses of int32 ids and float32 out; seed uint64."""
    k0: Any = np.int64(seed & np.uint64(_LOW))
    k1: Any = np.int64(seed >> np.uint64(32))
    whole = count // _LANES * _LANES
    for first in range(0, whole, _LANES):
        _noise_many(k0, k1, position, choice, ids, out, first)
    for first in range(whole, count):
        _noise_one(k0, k1, position, choice, ids, out, first)


@kernel
def _gumbel(seed: Any, choice: int, position: int, ids: npt.NDArray[np.int32], out: npt.NDArray[np.float32]) -> None:
    gumbel_row(seed, choice, position, ids.ctypes.data, len(ids), out.ctypes.data)


def gumbel(seed: int, choice: int, position: int, ids: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """The noise g of vocabulary indices `ids` (any shape) for one request, choice and absolute position: float32."""
    indices = np.ascontiguousarray(ids, np.int32)
    out = np.empty(indices.shape, np.float32)
    _gumbel(np.uint64(seed), choice, position, indices.reshape(-1), out.reshape(-1))
    return out


def philox_reference(counter: npt.NDArray[np.uint32], key: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """The generator in numpy: counters uint32 [..., 4] and one key uint32 [2] to uint32 [..., 4]."""
    c0, c1, c2, c3 = (counter[..., i].astype(np.uint64) for i in range(4))
    k0, k1 = int(key[0]), int(key[1])
    low, half = np.uint64(_LOW), np.uint64(32)
    for _ in range(_ROUNDS):
        product_0, product_1 = c0 * np.uint64(MULTIPLIERS[0]), c2 * np.uint64(MULTIPLIERS[1])
        c0, c2 = (product_1 >> half) ^ c1 ^ np.uint64(k0), (product_0 >> half) ^ c3 ^ np.uint64(k1)
        c1, c3 = product_1 & low, product_0 & low
        k0, k1 = (k0 + WEYL[0]) & _LOW, (k1 + WEYL[1]) & _LOW
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def gumbel_reference(seed: int, choice: int, position: int, ids: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """The same in numpy with the logarithms of its mathematical library."""
    indices = np.asarray(ids, np.uint32)
    counter = np.zeros((*indices.shape, 4), np.uint32)
    counter[..., 0], counter[..., 1], counter[..., 2] = indices, position, choice
    bits = philox_reference(counter, np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32))[..., 0]
    u = ((bits >> np.uint32(9)) + 0.5) * 2.0**-23
    return np.asarray(-np.log(-np.log(u)), np.float32)
