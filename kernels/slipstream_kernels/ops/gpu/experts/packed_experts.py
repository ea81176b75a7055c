"""Weights of experts in e4m3 or integers of 8 or 4 bits, which `expert_linear` decodes in front of its products.

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
from slipstream_kernels.ops.quantised_weight import PAIRED, Number, QuantisedWeight, decode

DEPTH = 128
"""Columns that are decoded at a time; groups of scales divide it or are a whole row."""
_DEPTH = tl.constexpr(DEPTH)


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """Weights [experts, N, K], contiguous.

    codes: uint8 [experts, N, K], or half of K where two share a byte. scales: float32 [experts, N, groups]. zeros: of
    the same form; None: the number's. group: columns that share a scale; 0: all.
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
        return cls(
            number,
            torch.empty(experts, outputs, inputs // (2 if number in PAIRED else 1), dtype=torch.uint8, device=device),
            torch.empty(of_scales, dtype=torch.float32, device=device),
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
    elif NUMBER == "int4":
        pair = codes.to(tl.int32)
        number = tl.reshape(tl.join(pair & 15, pair >> 4), (codes.shape[0], _DEPTH)).to(tl.float32)
    else:
        number = codes.to(tl.float32)
    return number


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
    if NUMBER == "int4":
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
    two: tl.constexpr = NUMBER == "int4"
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
        weights = _numbers(codes, NUMBER)
        if ZEROS:
            weights -= _spread(zeros, GROUP)
        elif ZERO != 0:
            weights -= ZERO
        weights = rounded(weights * _spread(scales, GROUP), tl.bfloat16)
        sums = dot(weights, tl.trans(values), sums)
        values, codes, scales, zeros = following
    return sums
