"""`linear` whose weights are decoded as they are used: the bits of `linear(x, decode(weight))`, from fewer bytes.

One row decodes in registers, in front of its chain of fused multiply-adds. More rows have some inputs of a block of
columns decoded once, to bfloat16 in a thread's own room, go on with their sums, which lie there too, and come to the
next inputs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slipstream_kernels.jit.arrays import aligned_empty
from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.jit.intrinsics import pointer_f32
from slipstream_kernels.ops.linear import BLOCK, ROW_GROUP, linear_block, linear_tasks
from slipstream_kernels.ops.quantised.decoding import decode_group, one_row
from slipstream_kernels.ops.quantised.packing import KINDS, PackedWeight, elements_of
from slipstream_kernels.ops.quantised.row_sums import add_rows

_CHUNK = 128
"""Inputs that are decoded at a time: 16 KiB, which stay in the nearest cache."""

ROOM_BYTES = (_CHUNK // 2 + ROW_GROUP) * BLOCK * 4
"""Of the room that each thread needs: for decoded weights, and for sums."""

_row_e4m3, _row_int8, _row_int4 = (one_row(kind) for kind in KINDS.values())
_decode_e4m3, _decode_int8, _decode_int4 = (decode_group(kind) for kind in KINDS.values())


@kernel
def _add_group(
    kind: int, x: int, rows: int, size: int, codes: int, count: int, scales: int, zeros: int, sums: int, decoded: int
) -> None:
    """Add `count` words of each column, of one group, to the sums of rows of x, which lie `size` floats apart."""
    if rows > 1:
        if kind == 1:
            _decode_e4m3(codes, count, scales, zeros, decoded)
        elif kind == 2:
            _decode_int8(codes, count, scales, zeros, decoded)
        else:
            _decode_int4(codes, count, scales, zeros, decoded)
        add_rows(x, rows, size, decoded, count * (8 if kind == 3 else 4), sums)
    elif kind == 1:
        _row_e4m3(x, codes, count, scales, zeros, sums)
    elif kind == 2:
        _row_int8(x, codes, count, scales, zeros, sums)
    else:
        _row_int4(x, codes, count, scales, zeros, sums)


@kernel
def _quantised_block(
    kind: int, x: int, rows: int, size: int, codes: int, scales: int, zeros: int, group: int, room: int
) -> None:
    """Sums of a block, float32 [rows, 64] at `room`."""
    elements = 8 if kind == 3 else 4
    decoded = room + ROW_GROUP * BLOCK * 4
    sums = pointer_f32(room)
    for i in range(rows * BLOCK):
        sums[i] = np.float32(0)
    start = 0
    while start < size:
        stop = min(start + group, size)
        while start < stop:
            count = (min(stop - start, _CHUNK) if rows > 1 else stop - start) // elements
            _add_group(kind, x + start * 4, rows, size, codes, count, scales, zeros, room, decoded)
            codes += count * BLOCK * 4
            start += count * elements
        scales += BLOCK * 4
        zeros += BLOCK * 4


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
    """As `linear_task`, of a weight of any kind: packed for `linear`, or codes with their scales and zero points.

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
    weight += block * (size // (8 if kind == 3 else 4)) * BLOCK * 4
    groups = (size + group - 1) // group * BLOCK * 4
    _quantised_block(kind, x, rows, size, weight, scales + block * groups, zeros + block * groups, group, room)
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
