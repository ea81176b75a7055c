"""Code that looks packed weights up in tables of bytes (see `lookup_packing`), written in front of what uses them.

Of 16 columns' four weights at a time, those of a vector of 64 bytes, two lookups or one give the lower and the upper
bytes. Interleaved they are pairs: words with two elements of a column each, from which float32 are one step away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from slipstream_kernels.jit import intrinsics as llvm
from slipstream_kernels.ops.linear import BLOCK, emit_halves
from slipstream_kernels.ops.quantised.instructions import LOOKS_UP
from slipstream_kernels.ops.quantised.lookup_packing import LOOKED_UP, UNIT, UNITS, byte_place
from slipstream_kernels.ops.quantised.packing import elements_of

_BYTES = ir.VectorType(ir.IntType(8), 64)
_WORDS = ir.VectorType(llvm.I32, UNIT)
_AHEAD = 1 << 12
"""Bytes of codes between those that are used for one row and those that memory is asked for."""
_SIGN = 0x80
_TABLE = UNIT * 8

_MATRIX = sum(bits << (8 * (7 - bit)) for bit, bits in enumerate((0x10, 0x20, 0x40, 0, 0, 0, 0, 0x08)))
"""GFNI's, whose byte 7 - i says of which bits bit i is the sum: a byte of e4m3 has the upper bits of its exponent moved
to the lowest, and its sign to the highest."""


def _fill(value: int) -> Any:
    return llvm.fill(_BYTES, value)


def _load(builder: Any, address: Any, offset: int = 0) -> Any:
    at = builder.add(address, llvm.constant(offset))
    return builder.load(builder.inttoptr(at, _BYTES.as_pointer()), align=4)


def _words(builder: Any, codes: Any, index: Any, unit: int) -> Any:
    """Word `index` of the columns of a unit."""
    at = builder.add(builder.mul(index, llvm.constant(BLOCK)), llvm.constant(unit * UNIT))
    return builder.load(builder.bitcast(llvm.pointer(builder, codes, llvm.I32, at), _WORDS.as_pointer()), align=4)


def _permuted(builder: Any, first: Any, indices: Any, second: Any) -> Any:
    """The bytes of two vectors that the lower 7 bits of indices name."""
    return llvm.call(builder, "llvm.x86.avx512.vpermi2var.qi.512", _BYTES, [first, indices, second])


def _columns() -> Any:
    """Where a column's entries begin, in each of its bytes."""
    places = sorted((byte_place(column, element), column) for column in range(UNIT) for element in range(4))
    return ir.Constant(_BYTES, [8 * column for _, column in places])


def _pairs_of(builder: Any, lower: Any, upper: Any) -> list[Any]:
    """Words of each column's elements 0 and 1, and of its elements 2 and 3."""
    pairs = []
    for half in (0, 8):
        order = [16 * lane + half + byte + part for lane in range(4) for byte in range(8) for part in (0, 64)]
        words = builder.shuffle_vector(lower, upper, ir.Constant(ir.VectorType(llvm.I32, 64), order))
        pairs.append(builder.bitcast(words, _WORDS))
    return pairs


def _signed(builder: Any, sizes: Any, codes: Any) -> Any:
    """Bytes with the highest bits of codes put over theirs: sizes ^ (codes & 128), in one instruction."""
    words = [builder.bitcast(each, _WORDS) for each in (sizes, codes, _fill(_SIGN))]
    truth = 0xF0 ^ (0xCC & 0xAA)
    signed = llvm.call(builder, "llvm.x86.avx512.pternlog.d.512", _WORDS, [*words, ir.Constant(llvm.I32, truth)])
    return builder.bitcast(signed, _BYTES)


class _Int4Unit:
    """16 columns in a group: tables of lower and upper bytes."""

    def __init__(self, builder: Any, record: Any, unit: int) -> None:
        start = unit * 2 * _TABLE
        self._lower, self._upper = (
            [_load(builder, record, start + table * _TABLE + half) for half in (0, 64)] for table in range(2)
        )

    def pairs(self, builder: Any, words: Any, part: int) -> list[Any]:
        if part:
            words = builder.or_(builder.shl(words, llvm.fill(_WORDS, 4)), builder.lshr(words, llvm.fill(_WORDS, 28)))
        codes = builder.bitcast(words, _BYTES)
        indices = builder.or_(builder.and_(codes, _fill(7)), _columns())
        some = llvm.opaque_mask(builder, builder.icmp_unsigned("!=", builder.and_(codes, _fill(_SIGN | 7)), _fill(0)))
        lower, upper = (
            builder.select(some, _permuted(builder, table[0], indices, table[1]), _fill(0))
            for table in (self._lower, self._upper)
        )
        return _pairs_of(builder, lower, _signed(builder, upper, codes))


class _E4m3Unit:
    """16 columns in a group: mantissas, and what is added to exponents."""

    def __init__(self, builder: Any, record: Any, unit: int) -> None:
        self._mantissas = [_load(builder, record, unit * _TABLE + half) for half in (0, 64)]
        self._exponents = _load(builder, record, UNITS * _TABLE + unit * 64)
        self._matrix = builder.bitcast(ir.Constant(ir.VectorType(llvm.I64, 8), [_MATRIX] * 8), _BYTES)

    def pairs(self, builder: Any, words: Any, _part: int) -> list[Any]:
        codes = builder.bitcast(words, _BYTES)
        indices = builder.or_(builder.and_(codes, _fill(7)), _columns())
        mantissas = _permuted(builder, self._mantissas[0], indices, self._mantissas[1])
        arguments = [codes, self._matrix, ir.Constant(ir.IntType(8), 0)]
        signed = llvm.call(builder, "llvm.x86.vgf2p8affineqb.512", _BYTES, arguments)
        return _pairs_of(
            builder,
            builder.or_(mantissas, builder.and_(codes, _fill(_SIGN))),
            builder.add(signed, self._exponents),
        )


Units = list[list[Any]]
"""Pairs of four elements as int32 vectors, by units: of the elements 0 and 1, and of 2 and 3."""


def _ask(builder: Any, codes: Any, index: Any) -> None:
    """Have memory bring the codes that come some words after those of an index, a line for each unit."""
    line = builder.add(codes, builder.mul(index, llvm.constant(BLOCK * 4)))
    for unit in range(UNITS):
        llvm.prefetch(builder, builder.add(line, llvm.constant(_AHEAD + unit * UNIT * 4)))


def _loop(
    builder: Any,
    kind: int,
    addresses: list[Any],
    initial: list[Any],
    use: Callable[[Any, Units, list[Any]], list[Any]],
    *,
    asks: bool = False,
) -> list[Any]:
    """Calls `use(index of four elements, pairs, carried values)`, which gives the carried values that follow.

    addresses: codes, how many words, and record. asks: memory is asked for codes ahead of those that are used.
    """
    codes, count, record = addresses
    form: Any = _Int4Unit if kind == LOOKED_UP["int4"] else _E4m3Unit
    units = [form(builder, record, unit) for unit in range(UNITS)]

    def body(index: Any, carried: list[Any]) -> list[Any]:
        if asks:
            _ask(builder, codes, index)
        words = [_words(builder, codes, index, unit) for unit in range(UNITS)]
        parts = elements_of(kind) // 4
        for part in range(parts):
            pairs = [each.pairs(builder, own, part) for each, own in zip(units, words, strict=True)]
            four = builder.add(builder.mul(index, llvm.constant(parts)), llvm.constant(part))
            carried = use(four, pairs, carried)
        return carried

    return llvm.loop(builder, count, 1, initial, body)


def row_by_tables(kind: int) -> Callable[[int, int, int, int, int], None]:
    """Intrinsic (x, codes, words, record, sums): adds words of a group to 64 float32 sums of a row.

    Where the instructions are missing it does nothing, and no weight is packed for it.
    """

    def emit(builder: Any, values: Any) -> None:
        if not LOOKS_UP:
            return
        x, *addresses, sums = values

        def use(four: Any, pairs: Units, totals: list[Any]) -> list[Any]:
            halves = [[half for pair in each for half in emit_halves(builder, pair)] for each in pairs]
            for place in range(4):
                k = builder.add(builder.mul(four, llvm.constant(4)), llvm.constant(place))
                row = llvm.splat(builder, builder.load(llvm.pointer(builder, x, llvm.F32, k), align=4))
                totals = [
                    llvm.fma(builder, row, each[place], total) for each, total in zip(halves, totals, strict=True)
                ]
            return totals

        columns = [llvm.constant(unit * UNIT) for unit in range(UNITS)]
        before = [llvm.load_vector(builder, sums, each) for each in columns]
        totals = _loop(builder, kind, addresses, before, use, asks=True)
        for column, total in zip(columns, totals, strict=True):
            llvm.store_vector(builder, total, sums, column)

    return llvm.define(types.void(*[types.int64] * 5), emit, 5)


def decode_by_tables(kind: int) -> Callable[[int, int, int, int], None]:
    """Intrinsic (codes, words, record, target): words of a group as pairs [inputs / 2, 64], see `row_sums`.

    As `row_by_tables` where the instructions are missing.
    """

    def emit(builder: Any, values: Any) -> None:
        if not LOOKS_UP:
            return
        *addresses, target = values

        def use(four: Any, pairs: Units, carried: list[Any]) -> list[Any]:
            for place in range(2):
                line = builder.add(builder.mul(four, llvm.constant(2)), llvm.constant(place))
                for unit, each in enumerate(pairs):
                    at = builder.add(builder.mul(line, llvm.constant(BLOCK)), llvm.constant(unit * UNIT))
                    pointer = builder.bitcast(llvm.pointer(builder, target, llvm.I32, at), _WORDS.as_pointer())
                    builder.store(each[place], pointer, align=4)
            return carried

        _loop(builder, kind, addresses, [], use)

    return llvm.define(types.void(*[types.int64] * 4), emit, 4)
