"""`linear` whose weights are decoded as they are used: the bits of `linear(x, decode(weight))`, from fewer bytes.

One row decodes in registers, in front of its chain of fused multiply-adds. More rows have a block of columns decoded
once, to bfloat16 in a thread's own room, and go on as `linear` does.

Codes are packed `[N / 64, K / c, 64]`: a 32-bit word holds c = 8 or 4 successive elements of a row, the first in the
lowest bits. Scales and zero points lie beside them, `[N / 64, groups, 64]`. N is padded by weights of zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from llvmlite import ir
from numba import types

from slipstream_kernels.jit import intrinsics as llvm
from slipstream_kernels.jit.arrays import aligned, aligned_empty
from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.jit.intrinsics import pointer_f32
from slipstream_kernels.ops.linear import BLOCK, ROW_GROUP, linear_block, linear_tasks, padded
from slipstream_kernels.ops.quantised_weight import Number, QuantisedWeight, doubled, halves, implied_zero

KINDS: dict[Number, int] = {"e4m3": 1, "int8": 2, "int4": 3}
"""What kernels call a number; 0 is bfloat16."""

_WORDS = ir.VectorType(llvm.I32, llvm.LANES)
_MAGIC = 0x4B000000
"""2^23 in float32: a whole number below 2^23 in its low bits adds itself."""
_E4M3_EXPONENT = 120
"""Between e4m3's bias and float32's, 127 - 7: bits of e4m3 in the place of float32's are a float 2^120 too small."""
_LARGEST_E4M3_SCALE = 2.0**7
"""Of such a scale the product with 2^120 is still finite."""


def _elements(kind: int) -> int:
    """Of a word."""
    return 8 if kind == KINDS["int4"] else 4


def _shifted(builder: Any, words: Any, left: int) -> Any:
    """Bits moved up, or down where `left` is negative."""
    if left == 0:
        return words
    return builder.shl(words, llvm.fill(_WORDS, left)) if left > 0 else builder.lshr(words, llvm.fill(_WORDS, -left))


def _value(builder: Any, kind: int, words: Any, place: int, zeros: Any) -> Any:
    """float32 of code - zero at `place` of each word; of e4m3 2^-120 of it."""
    if kind == KINDS["e4m3"]:
        size = builder.and_(_shifted(builder, words, 20 - 8 * place), llvm.fill(_WORDS, 0x07F00000))
        sign = builder.and_(_shifted(builder, words, 24 - 8 * place), llvm.fill(_WORDS, 0x80000000))
        return builder.bitcast(builder.or_(size, sign), llvm.VECTOR)
    bits = 32 // _elements(kind)
    code = _shifted(builder, words, -bits * place)
    if place < _elements(kind) - 1:
        code = builder.and_(code, llvm.fill(_WORDS, (1 << bits) - 1))
    raised = builder.bitcast(builder.or_(code, llvm.fill(_WORDS, _MAGIC)), llvm.VECTOR)
    return builder.fsub(raised, zeros)


def _decoded(builder: Any, kind: int, words: Any, place: int, scales: Any, zeros: Any) -> Any:
    """Bits of the bfloat16 at `place` of each word, in the upper half of 32; the lower half is not cleared."""
    product = builder.bitcast(builder.fmul(_value(builder, kind, words, place, zeros), scales), _WORDS)
    odd = builder.and_(builder.lshr(product, llvm.fill(_WORDS, 16)), llvm.fill(_WORDS, 1))
    return builder.add(product, builder.add(odd, llvm.fill(_WORDS, 0x7FFF)))


def _upper(builder: Any, bits: Any) -> Any:
    return builder.and_(bits, llvm.fill(_WORDS, 0xFFFF0000))


def _load_words(builder: Any, address: Any, index: Any) -> Any:
    source = builder.bitcast(llvm.pointer(builder, address, llvm.I32, index), _WORDS.as_pointer())
    return builder.load(source, align=4)


def _one_row(kind: int) -> Callable[[int, int, int, int, int, int], None]:
    """Intrinsic (x, codes, words, scales, zeros, sums): adds a group of one row to the 64 float32 sums of a block."""
    elements = _elements(kind)

    def emit(builder: Any, values: Any) -> None:
        x, codes, count, scales, zeros, sums = values
        for start in range(0, BLOCK, llvm.LANES):
            column = llvm.constant(start)
            scale, zero = llvm.load_vector(builder, scales, column), llvm.load_vector(builder, zeros, column)

            def body(
                index: Any, carried: list[Any], *, start: int = start, scale: Any = scale, zero: Any = zero
            ) -> Any:
                at = builder.add(builder.mul(index, llvm.constant(BLOCK)), llvm.constant(start))
                words = _load_words(builder, codes, at)
                total = carried[0]
                for place in range(elements):
                    weight = _upper(builder, _decoded(builder, kind, words, place, scale, zero))
                    k = builder.add(builder.mul(index, llvm.constant(elements)), llvm.constant(place))
                    row = llvm.splat(builder, builder.load(llvm.pointer(builder, x, llvm.F32, k), align=4))
                    total = llvm.fma(builder, row, builder.bitcast(weight, llvm.VECTOR), total)
                return [total]

            (total,) = llvm.loop(builder, count, 1, [llvm.load_vector(builder, sums, column)], body)
            llvm.store_vector(builder, total, sums, column)

    return llvm.define(types.void(*[types.int64] * 6), emit, 6)


def _decode_group(kind: int) -> Callable[[int, int, int, int, int], None]:
    """Intrinsic (codes, words, scales, zeros, target): a group of a block, packed as `linear` has its weights."""
    elements = _elements(kind)

    def emit(builder: Any, values: Any) -> None:
        codes, count, scales, zeros, target = values
        for start in range(0, BLOCK, 2 * llvm.LANES):
            columns = [llvm.constant(start), llvm.constant(start + llvm.LANES)]
            scale = [llvm.load_vector(builder, scales, column) for column in columns]
            zero = [llvm.load_vector(builder, zeros, column) for column in columns]

            def body(
                index: Any, carried: list[Any], *, start: int = start, scale: Any = scale, zero: Any = zero
            ) -> Any:
                at = builder.mul(index, llvm.constant(BLOCK))
                words = [
                    _load_words(builder, codes, builder.add(at, llvm.constant(start + part * llvm.LANES)))
                    for part in range(2)
                ]
                for place in range(elements):
                    low, high = (
                        _decoded(builder, kind, words[part], place, scale[part], zero[part]) for part in range(2)
                    )
                    pair = builder.or_(builder.lshr(low, llvm.fill(_WORDS, 16)), _upper(builder, high))
                    k = builder.add(builder.mul(index, llvm.constant(elements)), llvm.constant(place))
                    place_at = builder.add(builder.mul(k, llvm.constant(BLOCK // 2)), llvm.constant(start // 2))
                    pointer = llvm.pointer(builder, target, llvm.I32, place_at)
                    builder.store(pair, builder.bitcast(pointer, _WORDS.as_pointer()), align=4)
                return carried

            llvm.loop(builder, count, 1, [], body)

    return llvm.define(types.void(*[types.int64] * 5), emit, 5)


_row_e4m3, _row_int8, _row_int4 = (_one_row(kind) for kind in KINDS.values())
_decode_e4m3, _decode_int8, _decode_int4 = (_decode_group(kind) for kind in KINDS.values())


@kernel
def _block_of_one_row(kind: int, x: int, size: int, codes: int, scales: int, zeros: int, group: int, sums: int) -> None:
    elements = 8 if kind == 3 else 4
    values = pointer_f32(sums)
    for column in range(BLOCK):
        values[column] = np.float32(0)
    start = 0
    while start < size:
        words = min(group, size - start) // elements
        at = x + start * 4
        if kind == 1:
            _row_e4m3(at, codes, words, scales, zeros, sums)
        elif kind == 2:
            _row_int8(at, codes, words, scales, zeros, sums)
        else:
            _row_int4(at, codes, words, scales, zeros, sums)
        codes += words * BLOCK * 4
        scales += BLOCK * 4
        zeros += BLOCK * 4
        start += group


@kernel
def _decode_block(kind: int, size: int, codes: int, scales: int, zeros: int, group: int, target: int) -> None:
    elements = 8 if kind == 3 else 4
    start = 0
    while start < size:
        words = min(group, size - start) // elements
        if kind == 1:
            _decode_e4m3(codes, words, scales, zeros, target)
        elif kind == 2:
            _decode_int8(codes, words, scales, zeros, target)
        else:
            _decode_int4(codes, words, scales, zeros, target)
        codes += words * BLOCK * 4
        scales += BLOCK * 4
        zeros += BLOCK * 4
        target += words * elements * BLOCK * 2
        start += group


@kernel
def room_bytes(size: int) -> int:
    """Of the room that a thread needs for layers of `size` inputs."""
    return size * BLOCK * 2 + BLOCK * 4


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

    `room`: `room_bytes` of a thread; of bfloat16 weights none.
    """
    block = task % blocks
    row = task // blocks * ROW_GROUP
    out += (row * out_stride + block * BLOCK) * 4
    addend += (row * addend_stride + block * BLOCK) * 4
    if kind == 0:
        weight += block * size * BLOCK * 2
    else:
        weight += block * (size // (8 if kind == 3 else 4)) * BLOCK * 4
        groups = (size + group - 1) // group
        scales += block * groups * BLOCK * 4
        zeros += block * groups * BLOCK * 4
        if rows == 1:
            _block_of_one_row(kind, x, size, weight, scales, zeros, group, room)
            sums, addends, outs = pointer_f32(room), pointer_f32(addend), pointer_f32(out)
            for column in range(BLOCK):
                outs[column] = sums[column] + addends[column]
            return
        decoded = room + BLOCK * 4
        _decode_block(kind, size, weight, scales, zeros, group, decoded)
        weight = decoded
    linear_block(x + row * size * 4, min(rows - row, ROW_GROUP), size, weight, out, out_stride, addend, addend_stride)


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A quantised weight [N, K] as the kernels read it.

    codes: uint32 [ceil(N / 64), K / c, 64]. scales, zeros: float32 [ceil(N / 64), groups, 64]; zeros have 2^23 added,
    and scales of e4m3 are 2^120 times as large.
    """

    kind: int
    codes: npt.NDArray[np.uint32]
    scales: npt.NDArray[np.float32]
    zeros: npt.NDArray[np.float32]
    group: int

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.codes.nbytes + self.scales.nbytes + self.zeros.nbytes


def can_pack(weight: QuantisedWeight) -> bool:
    """Whether the kernels compute with a weight: not with scales of e4m3 from 128 on, nor with odd sizes."""
    if weight.shape[1] % 8 or weight.group % 8:
        return False
    return weight.number != "e4m3" or bool((weight.scales.float().abs() < _LARGEST_E4M3_SCALE).all())


def pack_quantised(weight: QuantisedWeight) -> PackedWeight:
    """A copy, of a weight that `can_pack`; e2m1 takes 8 bits here."""
    weight = doubled(weight) if weight.number == "e2m1" else weight
    kind, (outputs, inputs) = KINDS[weight.number], weight.shape
    elements = _elements(kind)
    bits = 32 // elements
    codes = halves(weight.codes) if weight.number == "int4" else weight.codes
    words = np.zeros((outputs, inputs // elements), np.uint32)
    for place in range(elements):
        words |= codes[:, place::elements].numpy().astype(np.uint32) << np.uint32(bits * place)
    scales = weight.scales.float()
    if weight.number == "e4m3":
        scales = scales * 2.0**_E4M3_EXPONENT
        zeros = torch.zeros_like(scales)
    else:
        zeros = torch.full_like(scales, implied_zero(weight.number)) if weight.zeros is None else weight.zeros.float()
        zeros = zeros + 2.0**23
    return PackedWeight(kind, _blocked(words), _blocked(scales.numpy()), _blocked(zeros.numpy()), weight.group)


def _blocked(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[N, n] as [ceil(N / 64), n, 64]."""
    whole = np.zeros((padded(len(rows)), rows.shape[1]), rows.dtype)
    whole[: len(rows)] = rows
    return aligned(whole.reshape(-1, BLOCK, rows.shape[1]).transpose(0, 2, 1))


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
    blocks, size = len(weight.codes), weight.codes.shape[1] * _elements(weight.kind)
    if x.shape[1] != size:
        raise ValueError(f"x has {x.shape[1]} columns, the weight has {size}")
    out = np.empty((len(x), blocks * BLOCK), np.float32)
    addend = np.zeros(blocks * BLOCK, np.float32) if bias is None else bias
    room = aligned_empty((room_bytes(size),), np.uint8)
    if len(x):
        codes, scales, zeros = (array.ctypes.data for array in (weight.codes, weight.scales, weight.zeros))
        _linear(
            x.ctypes.data, len(x), size, weight.kind, codes, scales, zeros, weight.group, blocks,
            out.ctypes.data, addend.ctypes.data, room.ctypes.data,
        )  # fmt: skip
    return out
