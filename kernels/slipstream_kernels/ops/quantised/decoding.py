"""Code that decodes packed weights in registers, written in front of what uses them.

A vector of words is decoded to float32 of code - zero, times the scale, and two such are rounded to the bfloat16 pairs
that `linear` has in a word. The rounding is one instruction where the processor has it, which takes denormal numbers
for zero (`can_pack` keeps them away), else whole numbers' arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import ir
from numba import types

from slipstream_kernels.jit import intrinsics as llvm
from slipstream_kernels.ops.linear import BLOCK
from slipstream_kernels.ops.quantised.instructions import ROUNDS
from slipstream_kernels.ops.quantised.packing import KINDS, RAISED, elements_of

VECTORS = BLOCK // llvm.LANES
"""Of the columns of a block."""

_WORDS = ir.VectorType(llvm.I32, llvm.LANES)
_HALVES = ir.VectorType(llvm.I16, 2 * llvm.LANES)


def _fill(value: int) -> Any:
    return llvm.fill(_WORDS, value)


def _load_words(builder: Any, address: Any, index: Any) -> Any:
    source = builder.bitcast(llvm.pointer(builder, address, llvm.I32, index), _WORDS.as_pointer())
    return builder.load(source, align=4)


def _upper(builder: Any, words: Any) -> Any:
    """float32 of the upper halves."""
    return builder.bitcast(builder.and_(words, _fill(0xFFFF0000)), llvm.VECTOR)


def _lower(builder: Any, words: Any) -> Any:
    """float32 of the lower halves."""
    return builder.bitcast(builder.shl(words, _fill(16)), llvm.VECTOR)


def _e4m3_values(builder: Any, words: Any) -> list[Any]:
    """float32, 2^-120 of them, of the four codes of each word; two at a time are shifted to bfloat16's places."""

    def in_place(halves: Any) -> Any:
        spread = builder.and_(builder.ashr(halves, llvm.fill(_HALVES, 4)), llvm.fill(_HALVES, 0x87F0))
        return builder.bitcast(spread, _WORDS)

    halves = builder.bitcast(words, _HALVES)
    even, odd = in_place(builder.shl(halves, llvm.fill(_HALVES, 8))), in_place(halves)
    return [part(builder, each) for part in (_lower, _upper) for each in (even, odd)]


def _integer_values(builder: Any, bits: int, words: Any, zeros: list[Any]) -> Iterator[Any]:
    """float32 of code - zero, by places. Of two codes one is in the lowest bits of 2^23, one above as in 2^(23 - bits).

    zeros: with 2^23 and with 2^(23 - bits) added.
    """
    for shift in range(0, 32, 2 * bits):
        shifted = builder.lshr(words, _fill(shift)) if shift else words
        for place in range(2):
            code = builder.and_(shifted, _fill(((1 << bits) - 1) << (bits * place)))
            raised = builder.or_(code, _fill((127 + RAISED - bits * place) << 23))
            yield builder.fsub(builder.bitcast(raised, llvm.VECTOR), zeros[place])


def _values(builder: Any, kind: int, words: Any, zeros: list[Any]) -> list[Any]:
    if kind == KINDS["e4m3"]:
        return _e4m3_values(builder, words)
    return list(_integer_values(builder, 32 // elements_of(kind), words, zeros))


def _zeros(builder: Any, kind: int, zeros: Any) -> list[Any]:
    """What is taken from codes at even and odd places."""
    if kind == KINDS["e4m3"]:
        return []
    bits = 32 // elements_of(kind)
    lowered = 2.0 ** (RAISED - bits) - 2.0**RAISED
    return [zeros, builder.fadd(zeros, llvm.fill(llvm.VECTOR, lowered))]


def _rounded(builder: Any, first: Any, second: Any, at_once: bool) -> Any:
    """Words of two bfloat16: those of 16 float32, then those of 16 others."""
    if at_once:
        return builder.bitcast(llvm.round_pair(builder, first, second), _WORDS)
    parts = []
    for vector in (first, second):
        bits = builder.bitcast(vector, _WORDS)
        odd = builder.and_(builder.lshr(bits, _fill(16)), _fill(1))
        whole = builder.lshr(builder.add(bits, builder.add(odd, _fill(0x7FFF))), _fill(16))
        parts.append(builder.trunc(whole, ir.VectorType(llvm.I16, llvm.LANES)))
    order = ir.Constant(ir.VectorType(llvm.I32, 2 * llvm.LANES), list(range(2 * llvm.LANES)))
    return builder.bitcast(builder.shuffle_vector(*parts, order), _WORDS)


class _Group:
    """The columns of a block from `start` on, 32 of them, in a group that has one scale for each."""

    def __init__(self, builder: Any, kind: int, at_once: bool, start: int, scales: Any, zeros: Any) -> None:
        self._kind, self._at_once = kind, at_once
        self._columns = [llvm.constant(start), llvm.constant(start + llvm.LANES)]
        self._scales = [llvm.load_vector(builder, scales, column) for column in self._columns]
        self._zeros = [_zeros(builder, kind, llvm.load_vector(builder, zeros, column)) for column in self._columns]

    def decoded(self, builder: Any, codes: Any, index: Any) -> list[Any]:
        """Of word `index` of each column, by places, as `linear` has them."""
        at = builder.mul(index, llvm.constant(BLOCK))
        products = []
        for column, scale, zeros in zip(self._columns, self._scales, self._zeros, strict=True):
            values = _values(builder, self._kind, _load_words(builder, codes, builder.add(at, column)), zeros)
            products.append([builder.fmul(value, scale) for value in values])
        return [_rounded(builder, low, high, self._at_once) for low, high in zip(*products, strict=True)]


def _groups(builder: Any, kind: int, at_once: bool, scales: Any, zeros: Any) -> list[_Group]:
    return [_Group(builder, kind, at_once, start, scales, zeros) for start in range(0, BLOCK, 2 * llvm.LANES)]


def one_row(kind: int, at_once: bool = ROUNDS) -> Callable[[int, int, int, int, int, int], None]:
    """Intrinsic (x, codes, words, scales, zeros, sums): adds a group of one row to the 64 float32 sums of a block."""
    elements = elements_of(kind)

    def emit(builder: Any, values: Any) -> None:
        x, codes, count, scales, zeros, sums = values
        groups = _groups(builder, kind, at_once, scales, zeros)

        def body(index: Any, totals: list[Any]) -> list[Any]:
            words = [group.decoded(builder, codes, index) for group in groups]
            for place in range(elements):
                k = builder.add(builder.mul(index, llvm.constant(elements)), llvm.constant(place))
                row = llvm.splat(builder, builder.load(llvm.pointer(builder, x, llvm.F32, k), align=4))
                weights = [part(builder, each[place]) for each in words for part in (_lower, _upper)]
                totals = [llvm.fma(builder, row, *pair) for pair in zip(weights, totals, strict=True)]
            return totals

        columns = [llvm.constant(vector * llvm.LANES) for vector in range(VECTORS)]
        totals = llvm.loop(builder, count, 1, [llvm.load_vector(builder, sums, column) for column in columns], body)
        for column, total in zip(columns, totals, strict=True):
            llvm.store_vector(builder, total, sums, column)

    return llvm.define(types.void(*[types.int64] * 6), emit, 6)


def decode_group(kind: int, at_once: bool = ROUNDS) -> Callable[[int, int, int, int, int], None]:
    """Intrinsic (codes, words, scales, zeros, target): a group of a block, packed as `linear` has its weights."""
    elements = elements_of(kind)

    def emit(builder: Any, values: Any) -> None:
        codes, count, scales, zeros, target = values
        groups = _groups(builder, kind, at_once, scales, zeros)

        def body(index: Any, carried: list[Any]) -> list[Any]:
            for part, group in enumerate(groups):
                for place, pairs in enumerate(group.decoded(builder, codes, index)):
                    k = builder.add(builder.mul(index, llvm.constant(elements)), llvm.constant(place))
                    at = builder.add(builder.mul(k, llvm.constant(BLOCK // 2)), llvm.constant(part * llvm.LANES))
                    pointer = llvm.pointer(builder, target, llvm.I32, at)
                    builder.store(pairs, builder.bitcast(pointer, _WORDS.as_pointer()), align=4)
            return carried

        llvm.loop(builder, count, 1, [], body)

    return llvm.define(types.void(*[types.int64] * 5), emit, 5)
