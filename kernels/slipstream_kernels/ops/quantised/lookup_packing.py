"""Quantised weights as kernels read them that look weights up in tables of bytes, made when weights are packed.

A group of a row has few weights: of int4 16, of e4m3 8 mantissas. Of each the tables have the bfloat16 that `decode`
gives, so that nothing is multiplied nor rounded. A table is for a unit of 16 rows, which lie side by side in a vector's
lanes, and has 8 entries a row, [16, 8], each of a byte.

Of 4 successive elements of a row there is a byte each, of 8 of int4 half a byte; 16 bytes of 4 rows begin with the
elements 0 and 1 of each row, and go on with the elements 2 and 3 (`byte_place`): interleaved with other bytes they
become words of a row each, with two elements. Codes are written anew:

int4, only without zero points, and with scales that have no sign: an element is a sign and 3 bits of size, whose 0 is 8
with the sign and 0 without. A byte has the size of one of the elements 0 to 3 in bits 0 to 2 and its sign in bit 7;
those of the elements 4 to 7 are there once words are rotated up by 4. Tables have the lower and the upper bytes of
size * scale.

e4m3: a byte has in bits 0 to 2 an entry of the row's mantissas, in bit 3 the sign, and in bits 4 to 6 and 7 the upper
bits and the last one of an exponent, to whose upper bits those of the row are added. Elements that have no such form
(zeros, denormal numbers, and perhaps the numbers next to them) are few. Four successive elements of a block's 64 rows
stay as they are in the file, and as `packing` has them, and are flagged, if one such element is among them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.jit.arrays import LINE, aligned_empty
from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.ops.linear import BLOCK, padded
from slipstream_kernels.ops.quantised_weight import Number, QuantisedWeight, halves, implied_zero

LOOKED_UP: dict[Number, int] = {"e4m3": 4, "int4": 5}
"""What kernels call a number whose weights they look up."""

UNIT = 16
UNITS = BLOCK // UNIT
TABLES_BYTES = 2 * BLOCK * 8
"""Of a record's tables. int4: lower and upper bytes of each unit by turns, [UNITS, 2, UNIT, 8]. e4m3: the mantissas
[UNITS, UNIT, 8], what is added to exponents [BLOCK, 4] in the order of codes' bytes, and float32 scales [BLOCK] times
2^120, in the order of flagged elements."""

SCALES_AT = BLOCK * 12
"""Where a record has scales."""

E4M3_EXPONENT = 120
"""Between e4m3's bias and float32's, 127 - 7: bits of e4m3 in the place of float32's are a float 2^120 too small."""

_LEAST_GROUP = 32
"""Of smaller groups the tables take more room than they save time."""


@kernel
def record_bytes(kind: int, group: int) -> int:
    """Of a group's record: its tables and, of e4m3, a flag for every four elements."""
    return TABLES_BYTES + ((group // 4 + LINE - 1) // LINE * LINE if kind == 4 else 0)


def can_look_up(weight: QuantisedWeight) -> bool:
    """Of weights that `can_pack`."""
    if min(weight.group, weight.shape[1]) < _LEAST_GROUP:
        return False
    if weight.number == "int4":
        centred = weight.zeros is None or bool((weight.zeros == implied_zero("int4")).all())
        return centred and not bool(weight.scales.float().signbit().any())
    return weight.number == "e4m3"


@kernel
def byte_place(row: int, element: int) -> int:
    """Where a block's words have one of four elements of a row, in bytes."""
    return row // 4 * 16 + element // 2 * 8 + row % 4 * 2 + element % 2


@kernel
def linear_place(row: int) -> int:
    """Where `linear` has a row of a block."""
    return row // 32 * 32 + row % 16 * 2 + row // 16 % 2


@kernel
def _pack_int4(codes: Any, words: Any) -> None:
    """codes: uint8 [N, K]; words: uint32 [N / 64, K / 8, 64], of zeros."""
    for block in range(words.shape[0]):
        for at in range(words.shape[1]):
            for row in range(BLOCK):
                for i in range(8):
                    value = np.int64(codes[block * BLOCK + row, at * 8 + i]) - 8
                    size, sign = abs(value) & 7, np.int64(value < 0)
                    place = byte_place(row, i & 3)
                    bit = place % 4 * 8
                    part = (size | sign << 7) << bit if i < 4 else size << (bit - 4) % 32 | sign << (bit + 3)
                    words[block, at, place // 4] |= part


@kernel
def _pack_e4m3(codes: Any, bits: Any, scales: Any, group: int, words: Any, records: Any) -> None:
    """codes: uint8 [N, K]; bits: int32 [N, groups, 8] of the bfloat16 whose exponent in e4m3 is 1; scales: float32 [N,
    groups], times 2^120. words: uint32 [N / 64, K / 4, 64]; records: uint8 [N / 64, groups, bytes]; both of zeros.
    """
    least = np.empty(BLOCK, np.int64)
    for block in range(words.shape[0]):
        rows = slice(block * BLOCK, block * BLOCK + BLOCK)
        for of in range(bits.shape[1]):
            start, stop = of * group, min(of * group + group, codes.shape[1])
            record, part, scale_bits = records[block, of], bits[rows, of], scales[rows, of].copy().view(np.uint32)
            for row in range(BLOCK):
                least[row] = _least_exponent(codes[block * BLOCK + row, start:stop], part[row])
            _put_tables(part, scale_bits, least, record)
            for at in range(start // 4, stop // 4):
                four = codes[rows, at * 4 : at * 4 + 4]
                record[TABLES_BYTES + at - start // 4] = not _put_four(four, part, scale_bits, least, words[block, at])


@kernel
def _put_tables(bits: Any, scale_bits: Any, least: Any, record: Any) -> None:
    for row in range(BLOCK):
        if least[row] >= 0:
            for i in range(8):
                record[row * 8 + i] = bits[row, i] & 127
        for i in range(4):
            record[BLOCK * 8 + byte_place(row, i)] = max(least[row], 0) >> 1
            record[SCALES_AT + linear_place(row) * 4 + i] = np.int64(scale_bits[row]) >> (8 * i) & 255


@kernel
def _put_four(codes: Any, bits: Any, scale_bits: Any, least: Any, words: Any) -> bool:
    """Put four elements of a block's rows, uint8 [64, 4], into words [64] of zeros; whether all have tables' form."""
    forms = np.empty((BLOCK, 4), np.int64)
    regular = True
    for row in range(BLOCK):
        flips = np.int64(scale_bits[row]) >> 31 << 7
        for i in range(4):
            forms[row, i] = _recoded(np.int64(codes[row, i]) ^ flips, bits[row], least[row])
            regular = regular and forms[row, i] >= 0
    for row in range(BLOCK):
        for i in range(4):
            place = byte_place(row, i) if regular else linear_place(row) * 4 + i
            byte = forms[row, i] if regular else np.int64(codes[row, i])
            words[place // 4] |= byte << (place % 4 * 8)
    return regular


@kernel
def _least_exponent(codes: Any, bits: Any) -> int:
    """The exponent of a row of a group that is told by 0: an even one, from which 15 reach the largest weight's.

    -1: all weights are zero.
    """
    if bits[0] == 0:
        return -1
    for code in codes:
        if code & 0x7F:
            return int((max(bits[0] >> 7, bits[6] >> 7) + 14 - 15 + 1) // 2 * 2)
    return -1


@kernel
def _recoded(code: Any, bits: Any, least: int) -> int:
    """A code of e4m3 in the form of tables; negative: it has none."""
    sign, exponent, entry = code >> 7, code >> 3 & 15, code & 7
    if least < 0:
        return int(sign << 3)
    told = (bits[entry] >> 7) + exponent - 1 - least
    if exponent == 0 or told < 0 or told > 15:
        return -1
    return int(entry | sign << 3 | told >> 1 << 4 | (told & 1) << 7)


def pack_tables(weight: QuantisedWeight) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint8]]:
    """Words [ceil(N / 64), K / c, 64] and records [ceil(N / 64), groups, bytes] of a weight that `can_look_up`."""
    (outputs, inputs), kind = weight.shape, LOOKED_UP[weight.number]
    elements = 8 if weight.number == "int4" else 4
    rows, scales, group = padded(outputs), weight.scales.float(), min(weight.group, inputs)
    words = aligned_empty((rows // BLOCK, inputs // elements, BLOCK), np.uint32)
    records = aligned_empty((rows // BLOCK, scales.shape[1], record_bytes(kind, group)), np.uint8)
    words[...] = 0
    records[...] = 0
    if weight.number == "int4":
        _pack_int4(_below(halves(weight.codes), rows, implied_zero("int4")), words)
        bits = _below(_bits(torch.tensor([8.0, 1, 2, 3, 4, 5, 6, 7]) * scales[:, :, None]), rows)
        tables = np.stack([bits & 255, bits >> 8]).reshape(2, -1, UNITS, UNIT, *bits.shape[1:])
        records[..., :TABLES_BYTES] = tables.transpose(1, 4, 2, 0, 3, 5).reshape(*records.shape[:2], -1)
    else:
        bits = _below(_bits(torch.arange(8.0, 16) * 2.0**-9 * scales[:, :, None]) & 0x7FFF, rows)
        _pack_e4m3(_below(weight.codes, rows), bits, _below(scales * 2.0**E4M3_EXPONENT, rows), group, words, records)
    return words, records


def _bits(weights: torch.Tensor) -> torch.Tensor:
    """int32 of bfloat16."""
    return weights.bfloat16().view(torch.int16).int() & 0xFFFF


def _below(tensor: torch.Tensor, rows: int, fill: int = 0) -> npt.NDArray[Any]:
    """With as many rows, of `fill`."""
    whole = torch.full((rows, *tensor.shape[1:]), fill, dtype=tensor.dtype)
    whole[: len(tensor)] = tensor
    return whole.numpy()
