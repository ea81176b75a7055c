"""Rows times some inputs of a block of decoded weights, added to sums that lie in memory.

Decoded weights are bfloat16 in one of two forms. As `linear` has them, a word has two columns of an input. As *pairs*
[inputs / 2, 64] a word has two successive inputs of a column, the first in its lower half, and columns lie in their
own order. While weights that are decoded already are multiplied, the codes of those that come next are brought nearer:
one line of memory at a time, so that memory and products do not wait for one another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from slipstream_kernels.jit import intrinsics as llvm
from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.ops.linear import BLOCK, columns_at_once, emit_halves, emit_products, emit_weights

_WORDS = ir.VectorType(llvm.I32, llvm.LANES)


def _row_block(rows: int, paired: bool) -> Callable[[int, int, int, int, int, int, int], None]:
    """Intrinsic (x, stride, w, count, sums, ahead, step): `rows` rows, `stride` floats apart, times a block.

    count: of inputs, of pairs if `paired`. The line at `ahead`, `step` bytes further for each input, is asked for.
    """
    emit_part = _emit_pairs if paired else _emit_columns

    def emit(builder: Any, values: Any) -> None:
        for start in range(0, BLOCK, columns_at_once(rows)):
            emit_part(builder, values, rows, start, columns_at_once(rows) // llvm.LANES)

    return llvm.define(types.void(*[types.int64] * 7), emit, 7)


def _emit_columns(builder: Any, values: Any, rows: int, start: int, vectors: int) -> None:
    x, stride, w, count, sums, ahead, step = values

    def body(k: Any, totals: list[Any]) -> list[Any]:
        _ask(builder, ahead, step, k)
        return emit_products(builder, x, stride, emit_weights(builder, w, k, start, vectors), k, totals)

    _emit_loop(builder, count, sums, _places(rows, start, vectors), body)


def _emit_pairs(builder: Any, values: Any, rows: int, start: int, vectors: int) -> None:
    x, stride, w, count, sums, ahead, step = values
    twice = (w, llvm.opaque(builder, w))  # words are loaded anew for their upper halves: registers are full of totals

    def body(pair: Any, totals: list[Any]) -> list[Any]:
        for place, source in enumerate(twice):
            words = [_load_words(builder, source, pair, start, vector) for vector in range(vectors)]
            k = builder.add(builder.mul(pair, llvm.constant(2)), llvm.constant(place))
            _ask(builder, ahead, step, k)
            columns = [emit_halves(builder, each)[place] for each in words]
            totals = emit_products(builder, x, stride, columns, k, totals)
        return totals

    _emit_loop(builder, count, sums, _places(rows, start, vectors), body)


def _emit_loop(builder: Any, count: Any, sums: Any, places: list[Any], body: Callable[[Any, list[Any]], Any]) -> None:
    totals = llvm.loop(builder, count, 1, [llvm.load_vector(builder, sums, place) for place in places], body)
    for place, total in zip(places, totals, strict=True):
        llvm.store_vector(builder, total, sums, place)


def _places(rows: int, start: int, vectors: int) -> list[Any]:
    """Of a tile's vectors in sums."""
    columns = [start + vector * llvm.LANES for vector in range(vectors)]
    return [llvm.constant(row * BLOCK + column) for row in range(rows) for column in columns]


def _load_words(builder: Any, w: Any, line: Any, start: int, vector: int) -> Any:
    at = builder.add(builder.mul(line, llvm.constant(BLOCK)), llvm.constant(start + vector * llvm.LANES))
    return builder.load(builder.bitcast(llvm.pointer(builder, w, llvm.I32, at), _WORDS.as_pointer()), align=4)


def _ask(builder: Any, ahead: Any, step: Any, k: Any) -> None:
    llvm.prefetch(builder, builder.add(ahead, builder.mul(k, step)))


_rows_1, _rows_2, _rows_3, _rows_4, _rows_5, _rows_6 = (_row_block(rows, paired=False) for rows in range(1, 7))
_pairs_1, _pairs_2, _pairs_3, _pairs_4, _pairs_5, _pairs_6 = (_row_block(rows, paired=True) for rows in range(1, 7))


@kernel
def _next_rows(left: int) -> int:
    """How many rows are computed at a time."""
    return left if left <= 6 else 6 if left >= 12 else (left + 1) // 2


@kernel
def add_rows(x: int, rows: int, stride: int, w: int, count: int, sums: int, ahead: int, step: int) -> None:
    """Add to float32 sums [rows, 64] what `count` inputs give: x float32 at [row * stride], w as `linear` has it.

    ahead: from where on memory is asked for, `step` bytes for each input.
    """
    row = 0
    while row < rows:
        block = _next_rows(rows - row)
        at, to = x + row * stride * 4, sums + row * BLOCK * 4
        if block == 6:
            _rows_6(at, stride, w, count, to, ahead, step)
        elif block == 5:
            _rows_5(at, stride, w, count, to, ahead, step)
        elif block == 4:
            _rows_4(at, stride, w, count, to, ahead, step)
        elif block == 3:
            _rows_3(at, stride, w, count, to, ahead, step)
        elif block == 2:
            _rows_2(at, stride, w, count, to, ahead, step)
        else:
            _rows_1(at, stride, w, count, to, ahead, step)
        row += block
        step = 0


@kernel
def add_pairs(x: int, rows: int, stride: int, w: int, count: int, sums: int, ahead: int, step: int) -> None:
    """As `add_rows`, of an even number of inputs in pairs."""
    row, count = 0, count // 2
    while row < rows:
        block = _next_rows(rows - row)
        at, to = x + row * stride * 4, sums + row * BLOCK * 4
        if block == 6:
            _pairs_6(at, stride, w, count, to, ahead, step)
        elif block == 5:
            _pairs_5(at, stride, w, count, to, ahead, step)
        elif block == 4:
            _pairs_4(at, stride, w, count, to, ahead, step)
        elif block == 3:
            _pairs_3(at, stride, w, count, to, ahead, step)
        elif block == 2:
            _pairs_2(at, stride, w, count, to, ahead, step)
        else:
            _pairs_1(at, stride, w, count, to, ahead, step)
        row += block
        step = 0
