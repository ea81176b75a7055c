"""Quantised weights as the kernels on a CPU read them.

Codes are packed `[N / 64, K / c, 64]`: a 32-bit word holds c = 8 or 4 successive elements of a row, the first in the
lowest bits. Scales and zero points lie beside them, `[N / 64, groups, 64]`. The 64 rows of a block are in the order
of `linear`'s outputs, j and j + 16 by turns. N is padded by weights of zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.jit.arrays import aligned
from slipstream_kernels.ops.linear import BLOCK, padded
from slipstream_kernels.ops.quantised.instructions import LOOKS_UP
from slipstream_kernels.ops.quantised.lookup_packing import E4M3_EXPONENT, LOOKED_UP, can_look_up, pack_tables
from slipstream_kernels.ops.quantised_weight import Number, QuantisedWeight, doubled, halves, implied_zero

KINDS: dict[Number, int] = {"e4m3": 1, "int8": 2, "int4": 3}
"""What kernels call a number; 0 is bfloat16. Of weights that are looked up in tables: `LOOKED_UP`."""

RAISED = 23
"""A whole number below 2^23 in the low bits of float32's 2^23 adds itself."""

_LARGEST_E4M3_SCALE = 2.0**7
"""Of such a scale the product with 2^120 is still finite."""
LEAST_SCALE = {"e4m3": 2.0**-117, "int8": 2.0**-126, "int4": 2.0**-126, "e2m1": 2.0**-125}
"""From these on no weight is a denormal number: the smallest code that is not zero is 2^-9, 1, 1 and 1/2."""


def elements_of(kind: int) -> int:
    """Of a word."""
    return 8 if kind in (KINDS["int4"], LOOKED_UP["int4"]) else 4


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A quantised weight [N, K] as the kernels read it.

    codes: uint32 [ceil(N / 64), K / c, 64]. scales, zeros: float32 [ceil(N / 64), groups, 64]; zeros have 2^23 added,
    and scales of e4m3 are 2^120 times as large. Of weights that are looked up, scales are the records of
    `lookup_packing`, and there are no zeros.
    """

    kind: int
    codes: npt.NDArray[np.uint32]
    scales: npt.NDArray[np.float32] | npt.NDArray[np.uint8]
    zeros: npt.NDArray[np.float32]
    group: int

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.codes.nbytes + self.scales.nbytes + self.zeros.nbytes


def can_pack(weight: QuantisedWeight) -> bool:
    """Whether the kernels compute with a weight: not with odd sizes, scales of e4m3 from 128 on, nor tiny scales.

    Processors that round to bfloat16 take denormal numbers for zero.
    """
    if weight.shape[1] % 8 or weight.group % 8:
        return False
    sizes = weight.scales.float().abs()
    if bool(((sizes > 0) & (sizes < LEAST_SCALE[weight.number])).any()):
        return False
    return weight.number != "e4m3" or bool((sizes < _LARGEST_E4M3_SCALE).all())


def pack_quantised(weight: QuantisedWeight, tables: bool = LOOKS_UP) -> PackedWeight:
    """A copy, of a weight that `can_pack`; e2m1 takes 8 bits here. tables: for lookups where the weight allows them."""
    weight = doubled(weight) if weight.number == "e2m1" else weight
    if tables and can_look_up(weight):
        words, records = pack_tables(weight)
        kind = LOOKED_UP[weight.number]
        return PackedWeight(kind, words, records, np.zeros(0, np.float32), min(weight.group, weight.shape[1]))
    kind, (outputs, inputs) = KINDS[weight.number], weight.shape
    elements = elements_of(kind)
    bits = 32 // elements
    codes = halves(weight.codes) if weight.number == "int4" else weight.codes
    words = np.zeros((outputs, inputs // elements), np.uint32)
    for place in range(elements):
        words |= codes[:, place::elements].numpy().astype(np.uint32) << np.uint32(bits * place)
    scales = weight.scales.float()
    if weight.number == "e4m3":
        scales = scales * 2.0**E4M3_EXPONENT
        zeros = torch.zeros_like(scales)
    else:
        zeros = torch.full_like(scales, implied_zero(weight.number)) if weight.zeros is None else weight.zeros.float()
        zeros = zeros + 2.0**RAISED
    return PackedWeight(kind, _blocked(words), _blocked(scales.numpy()), _blocked(zeros.numpy()), weight.group)


def _blocked(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[N, n] as [ceil(N / 64), n, 64], in the order of `linear`'s outputs."""
    whole = np.zeros((padded(len(rows)), rows.shape[1]), rows.dtype)
    whole[: len(rows)] = rows
    parts = whole.reshape(-1, BLOCK // 32, 2, 16, rows.shape[1])
    return aligned(parts.transpose(0, 4, 1, 3, 2).reshape(-1, rows.shape[1], BLOCK))
