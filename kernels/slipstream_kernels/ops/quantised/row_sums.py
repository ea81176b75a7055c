"""Rows times some inputs of a block of `linear`'s packed weights, added to sums that lie in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types

from slipstream_kernels.jit import intrinsics as llvm
from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.ops.linear import BLOCK, columns_at_once, emit_products, emit_weights


def _row_block(rows: int) -> Callable[[int, int, int, int, int], None]:
    """Intrinsic (x, stride, w, count, sums): `rows` rows, `stride` floats apart, times `count` inputs of a block."""

    def emit(builder: Any, values: Any) -> None:
        for start in range(0, BLOCK, columns_at_once(rows)):
            _emit_columns(builder, values, rows, start, columns_at_once(rows) // llvm.LANES)

    return llvm.define(types.void(*[types.int64] * 5), emit, 5)


def _emit_columns(builder: Any, values: Any, rows: int, start: int, vectors: int) -> None:
    x, stride, w, count, sums = values
    tile = [(row, vector) for row in range(rows) for vector in range(vectors)]
    places = [llvm.constant(row * BLOCK + start + vector * llvm.LANES) for row, vector in tile]

    def body(k: Any, totals: list[Any]) -> list[Any]:
        return emit_products(builder, x, stride, emit_weights(builder, w, k, start, vectors), k, totals)

    totals = llvm.loop(builder, count, 1, [llvm.load_vector(builder, sums, place) for place in places], body)
    for place, total in zip(places, totals, strict=True):
        llvm.store_vector(builder, total, sums, place)


_rows_1, _rows_2, _rows_3, _rows_4, _rows_5, _rows_6 = (_row_block(rows) for rows in range(1, 7))


@kernel
def add_rows(x: int, rows: int, stride: int, w: int, count: int, sums: int) -> None:
    """Add to float32 sums [rows, 64] what `count` inputs give: x float32 at [row * stride], w packed [count, 64]."""
    row = 0
    while row < rows:
        left = rows - row
        block = left if left <= 6 else 6 if left >= 12 else (left + 1) // 2
        at, to = x + row * stride * 4, sums + row * BLOCK * 4
        if block == 6:
            _rows_6(at, stride, w, count, to)
        elif block == 5:
            _rows_5(at, stride, w, count, to)
        elif block == 4:
            _rows_4(at, stride, w, count, to)
        elif block == 3:
            _rows_3(at, stride, w, count, to)
        elif block == 2:
            _rows_2(at, stride, w, count, to)
        else:
            _rows_1(at, stride, w, count, to)
        row += block
