"""Weights of experts in 8 or 4 bits an element, which `expert_linear` decodes in front of its products.

Each weight is the `QuantisedWeight` of its expert, in the same layout; what it stands for is `decode` of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import dot
from slipstream_kernels.ops.gpu.rounding import rounded
from slipstream_kernels.ops.quantised_weight import PAIRED, Number, QuantisedWeight, decode, implied_zero

DEPTH = 128
"""Columns that are decoded at a time; groups of scales divide it or are a whole row."""
_DEPTH = tl.constexpr(DEPTH)
_TWICE = tl.constexpr(0xC8643210 - (1 << 32))
"""Twice the numbers of e2m1 without their sign, four bits each, as an int32."""


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
def _spread(values_at: tl.tensor, own: tl.tensor, start: tl.tensor, groups: tl.tensor, GROUP: tl.constexpr) -> Any:
    """float32 [rows, DEPTH], or [rows, 1]: of each column from `start` on its group's scale or zero point."""
    if GROUP == 0:
        spread = tl.load(values_at[:, None], mask=own[:, None], other=0.0).to(tl.float32)
    else:
        parts: tl.constexpr = _DEPTH // GROUP
        group = start // GROUP + tl.arange(0, parts)
        found = tl.load(values_at[:, None] + group[None, :], mask=own[:, None] & (group < groups)[None, :], other=0.0)
        wide = tl.broadcast_to(found.to(tl.float32)[:, :, None], (found.shape[0], parts, GROUP))
        spread = tl.reshape(wide, (found.shape[0], _DEPTH))
    return spread


@triton.jit
def _numbers(code: tl.tensor, NUMBER: tl.constexpr) -> tl.tensor:
    """float32 of codes, int32."""
    if NUMBER == "e4m3":
        number = code.to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32)
    elif NUMBER == "e2m1":
        table = tl.zeros_like(code) + _TWICE
        size = ((table >> ((code & 7) * 4)) & 15).to(tl.float32) * 0.5
        number = tl.where(code >= 8, -size, size)
    else:
        number = code.to(tl.float32)
    return number


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
    """`chained_sums` of the decoded weights. Pointers to the rows of x [TOKENS, 1] and of all else [WEIGHT_ROWS]."""
    depths = tl.arange(0, _DEPTH)
    sums = tl.zeros((WEIGHT_ROWS, TOKENS), tl.float32)
    for start in range(0, inputs, _DEPTH):
        inside = start + depths < inputs
        values = tl.load(x_at + start + depths[None, :], mask=present & inside[None, :], other=0.0)
        if NUMBER == "int4" or NUMBER == "e2m1":
            halves = start // 2 + tl.arange(0, _DEPTH // 2)
            there = own[:, None] & (halves < inputs // 2)[None, :]
            pair = tl.load(codes_at[:, None] + halves[None, :], mask=there, other=0).to(tl.int32)
            code = tl.reshape(tl.join(pair & 15, pair >> 4), (WEIGHT_ROWS, _DEPTH))
        else:
            at = codes_at[:, None] + start + depths[None, :]
            code = tl.load(at, mask=own[:, None] & inside[None, :], other=0).to(tl.int32)
        weights = _numbers(code, NUMBER)
        if ZEROS:
            weights -= _spread(zeros_at, own, start, groups, GROUP)
        elif ZERO != 0:
            weights -= ZERO
        weights = rounded(weights * _spread(scales_at, own, start, groups, GROUP), tl.bfloat16)
        sums = dot(weights, tl.trans(values), sums)
    return sums


def zero_of(weight: PackedExperts) -> float:
    """The zero point of numbers without one of their own."""
    return float(implied_zero(weight.number))
