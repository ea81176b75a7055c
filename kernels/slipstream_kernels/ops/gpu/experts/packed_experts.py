"""Weights of experts in 8 or 4 bits an element, which `expert_linear` decodes in front of its products.

Each weight is the `QuantisedWeight` of its expert, in the same layout; what it stands for is `decode` of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import INTERPRETED, dot
from slipstream_kernels.ops.gpu.rounding import rounded
from slipstream_kernels.ops.quantised_weight import PAIRED, Number, QuantisedWeight, decode, implied_zero

DEPTH = 128
"""Columns that are decoded at a time; groups of scales divide it or are a whole row."""
_DEPTH = tl.constexpr(DEPTH)
_ASSEMBLED = tl.constexpr(not INTERPRETED)


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """Weights [experts, N, K], contiguous.

    codes: uint8 [experts, N, K], or half of K where two share a byte. scales: bfloat16 of e2m1, else float32 [experts,
    N, groups]. zeros: float32 of the same shape; None: the number's. group: columns that share a scale; 0: all.
    """

    number: Number
    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    group: int

    @classmethod
    def empty(
        cls, number: Number, shape: tuple[int, int, int], group: int, device: torch.device | str, *, zeros: bool
    ) -> PackedExperts:
        """Room for weights of a shape that `can_pack_experts`."""
        experts, outputs, inputs = shape
        of_scales = (experts, outputs, inputs // group if group else 1)
        dtype = torch.bfloat16 if number == "e2m1" else torch.float32
        return cls(
            number,
            torch.empty(experts, outputs, inputs // (2 if number in PAIRED else 1), dtype=torch.uint8, device=device),
            torch.empty(of_scales, dtype=dtype, device=device),
            torch.empty(of_scales, dtype=torch.float32, device=device) if zeros else None,
            group,
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(experts, N, K)."""
        experts, outputs, width = self.codes.shape
        return experts, outputs, width * 2 if self.number in PAIRED else width

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(each.nbytes for each in (self.codes, self.scales, self.zeros) if each is not None)

    def __len__(self) -> int:
        """Experts."""
        return len(self.codes)

    def decoded(self, expert: int) -> torch.Tensor:
        """bfloat16 [N, K] of an expert."""
        zeros = None if self.zeros is None else self.zeros[expert].to(torch.int16)
        group = self.group or self.shape[2]
        return decode(QuantisedWeight(self.number, self.codes[expert], self.scales[expert], zeros, group))


def can_pack_experts(inputs: int, group: int) -> bool:
    """Whether kernels read weights [N, inputs] of which `group` columns share a scale; from `inputs` on: all do."""
    return inputs % 32 == 0 and (group >= inputs or (DEPTH % group == 0 and inputs % group == 0))


@triton.jit
def _of_groups(values_at: tl.tensor, own: tl.tensor, start: tl.tensor, groups: tl.tensor, GROUP: tl.constexpr) -> Any:
    """float32 [rows, groups of DEPTH columns], or [rows, 1]: scales or zero points of the columns from `start` on."""
    if GROUP == 0:
        found = tl.load(values_at[:, None], mask=own[:, None], other=0.0)
    else:
        group = start // GROUP + tl.arange(0, _DEPTH // GROUP)
        found = tl.load(values_at[:, None] + group[None, :], mask=own[:, None] & (group < groups)[None, :], other=0.0)
    return found.to(tl.float32)


@triton.jit
def _spread(found: tl.tensor, GROUP: tl.constexpr) -> tl.tensor:
    """Each column's of what `_of_groups` found: [rows, DEPTH], or [rows, 1]."""
    if GROUP != 0:
        parts: tl.constexpr = _DEPTH // GROUP
        wide = tl.broadcast_to(found[:, :, None], (found.shape[0], parts, GROUP))
        found = tl.reshape(wide, (found.shape[0], _DEPTH))
    return found


@triton.jit
def _numbers(codes: tl.tensor, NUMBER: tl.constexpr) -> tl.tensor:
    """float32 [rows, DEPTH] of codes, uint8, two of which share a byte where the number has 4 bits."""
    if NUMBER == "e4m3":
        number = codes.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    elif NUMBER == "e2m1":
        # The bits of e2m1 are those of e5m2 but for its further exponents, whose bias is greater by 14.
        low, high = ((codes & 8) << 4) | ((codes & 7) << 1), (codes & 0x80) | ((codes & 0x70) >> 3)
        wide = tl.reshape(tl.join(low, high), (codes.shape[0], _DEPTH))
        number = wide.to(tl.uint8).to(tl.float8e5, bitcast=True).to(tl.float32) * 16384.0
    elif NUMBER == "int4":
        pair = codes.to(tl.int32)
        number = tl.reshape(tl.join(pair & 15, pair >> 4), (codes.shape[0], _DEPTH)).to(tl.float32)
    else:
        number = codes.to(tl.float32)
    return number


_SCALED = """
    shl.b32 size, {bytes}, {left};
    shl.b32 sign, {bytes}, {further};
    and.b32 sign, sign, 0x80008000;
    lop3.b32 size, size, 0x01C001C0, sign, 0xEA;
    fma.rn.bf16x2 size, size, scale_up, zero;
    fma.rn.bf16x2 {out}, size, {scale}, zero;"""
_TWO_OF_A_BYTE = tl.constexpr(
    """{
    .reg .b32 even, odd, sign, size, scale_up, zero;
    mov.b32 scale_up, 0x7E807E80;
    mov.b32 zero, 0x80008000;
    prmt.b32 even, $4, 0, 0x4140;
    prmt.b32 odd, $4, 0, 0x4342;"""
    + _SCALED.format(bytes="even", left=6, further=12, out="$0", scale="$5")
    + _SCALED.format(bytes="odd", left=6, further=12, out="$1", scale="$6")
    + _SCALED.format(bytes="even", left=2, further=8, out="$2", scale="$5")
    + _SCALED.format(bytes="odd", left=2, further=8, out="$3", scale="$6")
    + "\n}"
)
"""Of four bytes of e2m1 and their scales (powers of two, bfloat16): the products of lower and of upper numbers.

The bits of e2m1 at the place of bfloat16's exponent and fraction are the number times 2^-126, also where it is below 1;
both products are exact, or rounded once where bfloat16 has no such number.
"""


@triton.jit
def _scaled_pairs(codes: tl.tensor, scales: tl.tensor, GROUP: tl.constexpr) -> tl.tensor:
    """bfloat16 [rows, DEPTH] of e2m1 codes, two a byte, and float32 scales [rows, DEPTH // GROUP] or [rows, 1]."""
    scale = scales.to(tl.bfloat16)
    if GROUP != 0:
        scale = tl.broadcast_to(scale[:, :, None], (codes.shape[0], _DEPTH // GROUP, GROUP // 2))
        scale = tl.reshape(scale, (codes.shape[0], _DEPTH // 2))
    scale = tl.broadcast_to(scale, (codes.shape[0], _DEPTH // 2))
    both: tl.constexpr = (tl.bfloat16, tl.bfloat16)
    low, high = tl.inline_asm_elementwise(
        _TWO_OF_A_BYTE, "=r,=r,=r,=r,r,r,r", [codes, scale], dtype=both, is_pure=True, pack=4
    )
    return tl.reshape(tl.join(low, high), (codes.shape[0], _DEPTH))


@triton.jit
def _fetch(
    x_at: tl.tensor,
    codes_at: tl.tensor,
    scales_at: tl.tensor,
    zeros_at: tl.tensor,
    present: tl.tensor,
    own: tl.tensor,
    start: tl.tensor,
    inputs: tl.tensor,
    groups: tl.tensor,
    NUMBER: tl.constexpr,
    GROUP: tl.constexpr,
    ZEROS: tl.constexpr,
) -> Any:
    """What DEPTH columns from `start` on are made of: x, codes, scales and zero points; nothing from `inputs` on."""
    depths = start + tl.arange(0, _DEPTH)
    values = tl.load(x_at + depths[None, :], mask=present & (depths < inputs)[None, :], other=0.0)
    if NUMBER == "int4" or NUMBER == "e2m1":
        halves = start // 2 + tl.arange(0, _DEPTH // 2)
        there = own[:, None] & (halves < inputs // 2)[None, :]
        codes = tl.load(codes_at[:, None] + halves[None, :], mask=there, other=0)
    else:
        codes = tl.load(codes_at[:, None] + depths[None, :], mask=own[:, None] & (depths < inputs)[None, :], other=0)
    scales = _of_groups(scales_at, own, start, groups, GROUP)
    zeros = _of_groups(zeros_at, own, start, groups, GROUP) if ZEROS else scales
    return values, codes, scales, zeros


@triton.jit
def packed_sums(
    x_at: tl.tensor,
    codes_at: tl.tensor,
    scales_at: tl.tensor,
    zeros_at: tl.tensor,
    present: tl.tensor,
    own: tl.tensor,
    inputs: tl.tensor,
    groups: tl.tensor,
    WEIGHT_ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    NUMBER: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    ZEROS: tl.constexpr,
) -> Any:
    """`chained_sums` of the decoded weights. Pointers to the rows of x [TOKENS, 1] and of all else [WEIGHT_ROWS].

    Codes of 4 bits that follow are on their way from memory while some are decoded; of others Triton sees to that.
    """
    two: tl.constexpr = NUMBER == "int4" or NUMBER == "e2m1"
    sums = tl.zeros((WEIGHT_ROWS, TOKENS), tl.float32)
    ahead = _DEPTH if two else 0
    values, codes, scales, zeros = _fetch(
        x_at, codes_at, scales_at, zeros_at, present, own, inputs * 0, inputs, groups, NUMBER, GROUP, ZEROS
    )
    for start in range(0, inputs, _DEPTH):
        following = _fetch(
            x_at, codes_at, scales_at, zeros_at, present, own, start + ahead, inputs, groups, NUMBER, GROUP, ZEROS
        )
        if not two:
            values, codes, scales, zeros = following
        if _ASSEMBLED and NUMBER == "e2m1":
            weights = _scaled_pairs(codes, scales, GROUP)
        else:
            weights = _numbers(codes, NUMBER)
            if ZEROS:
                weights -= _spread(zeros, GROUP)
            elif ZERO != 0:
                weights -= ZERO
            weights = rounded(weights * _spread(scales, GROUP), tl.bfloat16)
        sums = dot(weights, tl.trans(values), sums)
        values, codes, scales, zeros = following
    return sums


def zero_of(weight: PackedExperts) -> float:
    """The zero point of numbers without one of their own."""
    return float(implied_zero(weight.number))
