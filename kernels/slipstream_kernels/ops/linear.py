"""y = x W^T + b with bf16 weights and float32 sums, whose rows do not depend on how many rows there are.

Every output element is one chain of fused multiply-adds over k = 0, 1, ..., K-1, starting at zero; its addend (bias
or residual) is added at the end. Blocks of rows and columns only choose which chains run side by side.

Weights are packed `[N / 64, K, 64]`: the 64 outputs of a block lie side by side for each k, in two groups of 32. Within
a group output j is followed by output j + 16, so that a 32-bit word holds two outputs whose float32 values are the
word shifted up and the word without its lower half. N is padded by zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numpy as np
import numpy.typing as npt
import torch
from llvmlite import ir
from numba import types

from slipstream_kernels.jit import intrinsics as llvm
from slipstream_kernels.jit.arrays import aligned
from slipstream_kernels.jit.compiler import kernel

BLOCK = 64
"""Output columns of a packed block."""

ROW_GROUP = 96
"""Rows of one task at most; a multiple of the largest row block."""

_WIDE = "avx512f" in (name for name, on in llvmlite.binding.get_host_cpu_features().items() if on)


def columns_at_once(rows: int) -> int:
    """Columns whose accumulators fit the registers beside those of `rows` rows."""
    return BLOCK if _WIDE or rows == 1 else 2 * llvm.LANES


def _row_block(rows: int) -> Callable[[int, int, int, int, int, int, int], None]:
    """Intrinsic (x, w, k, out, out_stride, addend, addend_stride): `rows` rows times one packed block.

    Addresses, and strides in floats; rows of x lie k floats apart.
    """

    def emit(builder: Any, values: Any) -> None:
        for start in range(0, BLOCK, columns_at_once(rows)):
            _emit_columns(builder, values, rows, start, columns_at_once(rows) // llvm.LANES)

    return llvm.define(types.void(*[types.int64] * 7), emit, 7)


def emit_weights(builder: Any, w: Any, k: Any, start: int, vectors: int) -> list[Any]:
    """The vectors of columns start, start + 16, .. at depth k, two for each vector of 32-bit words."""
    words_type = ir.VectorType(llvm.I32, llvm.LANES)
    row = builder.mul(k, llvm.constant(BLOCK // 2))
    columns = []
    for pair in range(vectors // 2):
        index = builder.add(row, llvm.constant(start // 2 + pair * llvm.LANES))
        source = builder.bitcast(llvm.pointer(builder, w, llvm.I32, index), words_type.as_pointer())
        words = builder.load(source, align=4)
        columns += emit_halves(builder, words)
    return columns


def emit_halves(builder: Any, words: Any) -> list[Any]:
    """float32 of the bfloat16 in the lower halves of words, and of those in the upper halves."""
    halves = (builder.shl(words, llvm.fill(words.type, 16)), builder.and_(words, llvm.fill(words.type, 0xFFFF0000)))
    return [builder.bitcast(half, llvm.VECTOR) for half in halves]


def emit_products(builder: Any, x: Any, stride: Any, columns: list[Any], k: Any, sums: list[Any]) -> list[Any]:
    """The sums with x[row * stride + k] times each vector of columns added: row after row, column after column."""
    inputs = []
    for row in range(len(sums) // len(columns)):
        index = builder.add(builder.mul(stride, llvm.constant(row)), k)
        inputs.append(llvm.splat(builder, builder.load(llvm.pointer(builder, x, llvm.F32, index), align=4)))
    products = [(given, column) for given in inputs for column in columns]
    return [llvm.fma(builder, *product, total) for product, total in zip(products, sums, strict=True)]


def _emit_columns(builder: Any, values: Any, rows: int, start: int, vectors: int) -> None:
    x, w, size, out, out_stride, addend, addend_stride = values
    tile = [(row, vector) for row in range(rows) for vector in range(vectors)]

    def body(k: Any, sums: list[Any]) -> list[Any]:
        return emit_products(builder, x, size, emit_weights(builder, w, k, start, vectors), k, sums)

    sums = llvm.loop(builder, size, 1, [llvm.zero_vector()] * len(tile), body)
    for (row, vector), total in zip(tile, sums, strict=True):
        column = llvm.constant(start + vector * llvm.LANES)
        source = builder.add(builder.mul(addend_stride, llvm.constant(row)), column)
        target = builder.add(builder.mul(out_stride, llvm.constant(row)), column)
        llvm.store_vector(builder, builder.fadd(total, llvm.load_vector(builder, addend, source)), out, target)


_rows_1, _rows_2, _rows_3, _rows_4, _rows_5, _rows_6 = (_row_block(rows) for rows in range(1, 7))


@kernel
def linear_tasks(rows: int, blocks: int) -> int:
    """Number of tasks of a linear layer."""
    return blocks * ((rows + ROW_GROUP - 1) // ROW_GROUP)


@kernel
def linear_block(
    x: int, rows: int, size: int, w: int, out: int, out_stride: int, addend: int, addend_stride: int
) -> None:
    """`rows` rows times one packed block. Addresses of float32 x, and of out and addend at the block's first column."""
    row = 0
    while row < rows:
        left = rows - row
        block_rows = left if left <= 6 else 6 if left >= 12 else (left + 1) // 2
        x_row = x + row * size * 4
        out_row = out + row * out_stride * 4
        add_row = addend + row * addend_stride * 4
        if block_rows == 6:
            _rows_6(x_row, w, size, out_row, out_stride, add_row, addend_stride)
        elif block_rows == 5:
            _rows_5(x_row, w, size, out_row, out_stride, add_row, addend_stride)
        elif block_rows == 4:
            _rows_4(x_row, w, size, out_row, out_stride, add_row, addend_stride)
        elif block_rows == 3:
            _rows_3(x_row, w, size, out_row, out_stride, add_row, addend_stride)
        elif block_rows == 2:
            _rows_2(x_row, w, size, out_row, out_stride, add_row, addend_stride)
        else:
            _rows_1(x_row, w, size, out_row, out_stride, add_row, addend_stride)
        row += block_rows


@kernel
def linear_task(
    task: int,
    x: int,
    rows: int,
    size: int,
    w: int,
    blocks: int,
    out: int,
    out_stride: int,
    addend: int,
    addend_stride: int,
) -> None:
    """One task: a block of columns for a group of rows. Addresses of float32 x, out, addend and packed w.

    `addend` is read at [row * addend_stride + column]; it may be `out` itself.
    """
    block = task % blocks
    row = task // blocks * ROW_GROUP
    out += (row * out_stride + block * BLOCK) * 4
    addend += (row * addend_stride + block * BLOCK) * 4
    w += block * size * BLOCK * 2
    linear_block(x + row * size * 4, min(rows - row, ROW_GROUP), size, w, out, out_stride, addend, addend_stride)


@kernel
def _linear(x: int, rows: int, size: int, w: int, blocks: int, out: int, addend: int) -> None:
    for task in range(linear_tasks(rows, blocks)):
        linear_task(task, x, rows, size, w, blocks, out, blocks * BLOCK, addend, 0)


def padded(size: int) -> int:
    """Output columns after padding to whole blocks."""
    return (size + BLOCK - 1) // BLOCK * BLOCK


def pack_weight(weight: torch.Tensor) -> npt.NDArray[np.uint16]:
    """Pack a bf16 weight [N, K] as uint16 [ceil(N / 64), K, 64]."""
    outputs, inputs = weight.shape
    bits = np.zeros((padded(outputs), inputs), np.uint16)
    bits[:outputs] = weight.contiguous().view(torch.uint16).numpy()
    groups = bits.reshape(-1, BLOCK // 32, 2, 16, inputs)
    return aligned(groups.transpose(0, 4, 1, 3, 2).reshape(-1, inputs, BLOCK))


def linear(
    x: npt.NDArray[np.float32], weight: npt.NDArray[np.uint16], bias: npt.NDArray[np.float32] | None = None
) -> npt.NDArray[np.float32]:
    """float32 x [rows, K] times packed weights, plus bias [padded N]: float32 [rows, padded N]."""
    x = np.ascontiguousarray(x)
    blocks, size, _ = weight.shape
    if x.shape[1] != size:
        raise ValueError(f"x has {x.shape[1]} columns, the weight has {size}")
    out = np.empty((len(x), blocks * BLOCK), np.float32)
    addend = np.zeros(blocks * BLOCK, np.float32) if bias is None else bias
    if len(x):
        _linear(x.ctypes.data, len(x), size, weight.ctypes.data, blocks, out.ctypes.data, addend.ctypes.data)
    return out


def linear_reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The same in torch, in the dtype of x: x [rows, K], weight [N, K], bias [N]."""
    return torch.nn.functional.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
