"""`linear` whose weights are decoded as they are used: the bits of `linear(x, decode(weight))`, from fewer bytes.

One row decodes in registers, in front of its chain of fused multiply-adds. More rows have some inputs of a block of
columns decoded once, to bfloat16 in a thread's own room, go on with their sums, which lie there too, while the codes of
inputs that follow come from memory, and come to the next inputs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slipstream_kernels.jit.arrays import aligned_empty
from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.jit.intrinsics import pointer_f32, pointer_u8
from slipstream_kernels.ops.linear import BLOCK, ROW_GROUP, linear_block, linear_tasks
from slipstream_kernels.ops.quantised.decoding import decode_group, one_row
from slipstream_kernels.ops.quantised.lookup import decode_by_tables, row_by_tables
from slipstream_kernels.ops.quantised.lookup_packing import LOOKED_UP, SCALES_AT, TABLES_BYTES, record_bytes
from slipstream_kernels.ops.quantised.packing import KINDS, PackedWeight, elements_of
from slipstream_kernels.ops.quantised.row_sums import add_pairs, add_rows

_E4M3, _INT8, _INT4 = KINDS.values()
_E4M3_TABLES, _INT4_TABLES = LOOKED_UP.values()

_CHUNK = 128
"""Inputs that are decoded at a time: 16 KiB, which stay in the nearest cache."""

_AHEAD = 1 << 14
"""Bytes of codes between those that are used and those that memory is asked for."""

ROOM_BYTES = (_CHUNK // 2 + ROW_GROUP) * BLOCK * 4
"""Of the room that each thread needs: for sums, and for decoded weights."""

_row_e4m3, _row_int8, _row_int4 = (one_row(kind) for kind in KINDS.values())
_decode_e4m3, _decode_int8, _decode_int4 = (decode_group(kind) for kind in KINDS.values())
_row_e4m3_tables, _row_int4_tables = (row_by_tables(kind) for kind in LOOKED_UP.values())
_decode_e4m3_tables, _decode_int4_tables = (decode_by_tables(kind) for kind in LOOKED_UP.values())


@kernel
def _elements(kind: int) -> int:
    return 8 if kind in (_INT4, _INT4_TABLES) else 4


@kernel
def _run(flags: int, count: int) -> int:
    """How many of `count` flags are as the first."""
    values = pointer_u8(flags)
    run = 1
    while run < count and values[run] == values[0]:
        run += 1
    return run


@kernel
def _add_to_row(kind: int, x: int, codes: int, count: int, scales: int, zeros: int, sums: int) -> None:
    """Add `count` words of each column, of one group, to the sums of one row. zeros: of tables their flags."""
    if kind == _E4M3:
        _row_e4m3(x, codes, count, scales, zeros, sums)
    elif kind == _INT8:
        _row_int8(x, codes, count, scales, zeros, sums)
    elif kind == _INT4:
        _row_int4(x, codes, count, scales, zeros, sums)
    elif kind == _E4M3_TABLES:
        at = 0
        while at < count:
            run = _run(zeros + at, count - at)
            word = codes + at * BLOCK * 4
            if pointer_u8(zeros)[at]:
                _row_e4m3(x + at * 16, word, run, scales + SCALES_AT, scales, sums)
            else:
                _row_e4m3_tables(x + at * 16, word, run, scales, sums)
            at += run
    else:
        _row_int4_tables(x, codes, count, scales, sums)


@kernel
def _add_to_rows(
    kind: int, x: int, rows: int, stride: int, codes: int, count: int, scales: int, zeros: int, decoded: int, sums: int
) -> None:
    """Add `count` words of each column, of one group, to the sums of some rows. zeros: of tables their flags."""
    elements = _elements(kind)
    ahead, step = codes + _AHEAD, BLOCK * 4 // elements
    if kind == _INT4_TABLES:
        _decode_int4_tables(codes, count, scales, decoded)
        add_pairs(x, rows, stride, decoded, count * elements, sums, ahead, step)
    elif kind == _E4M3_TABLES:
        at = 0
        while at < count:
            run = _run(zeros + at, count - at)
            word = codes + at * BLOCK * 4
            if pointer_u8(zeros)[at]:
                _decode_e4m3(word, run, scales + SCALES_AT, scales, decoded)
                add_rows(x + at * 16, rows, stride, decoded, run * 4, sums, word + _AHEAD, step)
            else:
                _decode_e4m3_tables(word, run, scales, decoded)
                add_pairs(x + at * 16, rows, stride, decoded, run * 4, sums, word + _AHEAD, step)
            at += run
    else:
        if kind == _E4M3:
            _decode_e4m3(codes, count, scales, zeros, decoded)
        elif kind == _INT8:
            _decode_int8(codes, count, scales, zeros, decoded)
        else:
            _decode_int4(codes, count, scales, zeros, decoded)
        add_rows(x, rows, stride, decoded, count * elements, sums, ahead, step)


@kernel
def _quantised_block(
    kind: int, block: int, x: int, rows: int, size: int, codes: int, scales: int, zeros: int, group: int, room: int
) -> None:
    """Sums of a block, float32 [rows, 64] at `room`. x: rows that lie `size` floats apart."""
    elements = _elements(kind)
    tables = kind >= _E4M3_TABLES
    step = record_bytes(kind, group) if tables else BLOCK * 4
    codes += block * (size // elements) * BLOCK * 4
    scales += block * ((size + group - 1) // group) * step
    zeros += block * ((size + group - 1) // group) * step
    decoded = room + ROW_GROUP * BLOCK * 4
    sums = pointer_f32(room)
    for i in range(rows * BLOCK):
        sums[i] = np.float32(0)
    start = 0
    while start < size:
        stop = min(start + group, size)
        flags = scales + TABLES_BYTES if tables else zeros
        while start < stop:
            count = (min(stop - start, _CHUNK) if rows > 1 else stop - start) // elements
            if rows == 1:
                _add_to_row(kind, x + start * 4, codes, count, scales, flags, room)
            else:
                _add_to_rows(kind, x + start * 4, rows, size, codes, count, scales, flags, decoded, room)
            codes += count * BLOCK * 4
            start += count * elements
            flags += count if tables else 0
        scales += step
        zeros += step


@kernel
def weight_task(
    task: int,
    x: int,
    rows: int,
    size: int,
    kind: int,
    weight: int,
    scales: int,
    zeros: int,
    group: int,
    blocks: int,
    out: int,
    out_stride: int,
    addend: int,
    addend_stride: int,
    room: int,
) -> None:
    """As `linear_task`, of a weight of any kind: packed for `linear`, or the arrays of a `PackedWeight`.

    `room`: `ROOM_BYTES` of a thread; of bfloat16 weights none.
    """
    block = task % blocks
    row = task // blocks * ROW_GROUP
    out += (row * out_stride + block * BLOCK) * 4
    addend += (row * addend_stride + block * BLOCK) * 4
    x += row * size * 4
    rows = min(rows - row, ROW_GROUP)
    if kind == 0:
        linear_block(x, rows, size, weight + block * size * BLOCK * 2, out, out_stride, addend, addend_stride)
        return
    _quantised_block(kind, block, x, rows, size, weight, scales, zeros, group, room)
    for row in range(rows):
        sums, addends = pointer_f32(room + row * BLOCK * 4), pointer_f32(addend + row * addend_stride * 4)
        outs = pointer_f32(out + row * out_stride * 4)
        for column in range(BLOCK):
            outs[column] = sums[column] + addends[column]


@kernel
def _linear(
    x: int,
    rows: int,
    size: int,
    kind: int,
    codes: int,
    scales: int,
    zeros: int,
    group: int,
    blocks: int,
    out: int,
    addend: int,
    room: int,
) -> None:
    for task in range(linear_tasks(rows, blocks)):
        stride = blocks * BLOCK
        weight_task(task, x, rows, size, kind, codes, scales, zeros, group, blocks, out, stride, addend, 0, room)


def quantised_linear(
    x: npt.NDArray[np.float32], weight: PackedWeight, bias: npt.NDArray[np.float32] | None = None
) -> npt.NDArray[np.float32]:
    """float32 x [rows, K] times a packed weight, plus bias [padded N]: float32 [rows, padded N]."""
    x = np.ascontiguousarray(x)
    blocks, size = len(weight.codes), weight.codes.shape[1] * elements_of(weight.kind)
    if x.shape[1] != size:
        raise ValueError(f"x has {x.shape[1]} columns, the weight has {size}")
    out = np.empty((len(x), blocks * BLOCK), np.float32)
    addend = np.zeros(blocks * BLOCK, np.float32) if bias is None else bias
    room = aligned_empty((ROOM_BYTES,), np.uint8)
    if len(x):
        codes, scales, zeros = (array.ctypes.data for array in (weight.codes, weight.scales, weight.zeros))
        _linear(
            x.ctypes.data, len(x), size, weight.kind, codes, scales, zeros, weight.group, blocks,
            out.ctypes.data, addend.ctypes.data, room.ctypes.data,
        )  # fmt: skip
    return out
