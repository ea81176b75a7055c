"""Weights of experts in the order in which matrix instructions hold them: see `ops.gpu.packed.packed_weight`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import dot
from slipstream_kernels.ops.gpu.packed.fragments import ROWS, decoded_tile, groups_at, words_at
from slipstream_kernels.ops.gpu.packed.packed_weight import (
    UNIT,
    WORDS,
    PackedForm,
    PackedWeight,
    can_pack,
    chunk_of,
    codes_of,
    pack,
    paired_scales,
    unpacked,
    words_of,
)
from slipstream_kernels.ops.quantised_weight import PAIRED, Number, QuantisedWeight, decode, halves, paired

MX_GROUP = 32
"""Columns that share a scale of e2m1 (OCP Microscaling Formats, version 1.0)."""
DEPTH = 128
"""Columns that are decoded at a time."""
_ROWS, _DEPTH = tl.constexpr(ROWS), tl.constexpr(DEPTH)
_EXPONENTS = chunk_of("e2m1") // MX_GROUP
"""Of a chunk."""
RAISED = 126
"""What exponents of e2m1 are greater by where one product both scales a number and brings its bits to their size."""
_MOST_RAISED = 254 - RAISED

Pieces = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


@dataclass(frozen=True, slots=True)
class FragmentExperts:
    """Weights [experts, N, K], contiguous; N is a multiple of UNIT.

    form: of an expert's weight. codes: int32 [experts, units of N, chunks of K, WORDS]; those beyond K are 0. scales:
    float32 [experts, groups, N], zeros the same, or None: the number's. Of e2m1 a group is a chunk, and scales are
    int32: the exponents of the chunk's groups of MX_GROUP, 127 too large, from the lowest byte on. `paired`: of int4
    scales are int32 as those of such a `PackedWeight`, of e2m1 exponents are RAISED.
    """

    form: PackedForm
    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    paired: bool = False

    @classmethod
    def empty(
        cls, number: Number, shape: tuple[int, int, int], group: int, device: torch.device | str, *, zeros: bool
    ) -> FragmentExperts:
        """Room for weights of a shape that `can_be_fragments`; group: columns that share a scale, 0: all."""
        experts, outputs, inputs = shape
        assert can_be_fragments(number, outputs, inputs, group or inputs)
        form = PackedForm(number, outputs, inputs, chunk_of(number) if number == "e2m1" else group, zeros)
        of_groups = experts, form.groups, outputs
        kind = torch.int32 if number == "e2m1" else torch.float32
        return cls(
            form,
            torch.empty(experts, form.units, form.chunks, WORDS, dtype=torch.int32, device=device),
            torch.empty(of_groups, dtype=kind, device=device),
            torch.empty(of_groups, dtype=torch.float32, device=device) if zeros else None,
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(experts, N, K)."""
        return len(self), self.form.outputs, self.form.inputs

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(each.nbytes for each in (self.codes, self.scales, self.zeros) if each is not None)

    def __len__(self) -> int:
        """Experts."""
        return len(self.codes)

    def put(self, expert: int, weight: QuantisedWeight) -> None:
        """Write the weight of an expert, where they are not settled."""
        assert not self.paired
        for own, piece in zip((self.codes, self.scales, self.zeros), pieces_of(weight, self.form), strict=True):
            if own is not None and piece is not None:
                own[expert].copy_(piece)

    def settled(self) -> FragmentExperts:
        """The same in the room of this one, whose contents are there: paired where all scales can be."""
        if self.paired or self.form.number not in PAIRED:
            return self
        if self.form.number == "e2m1":
            exponents = self.scales.view(torch.uint8)
            if int(exponents.max()) > _MOST_RAISED:
                return self
            exponents += RAISED
            return replace(self, paired=True)
        scales = paired_scales(self.scales)
        return self if scales is None else replace(self, scales=scales, paired=True)

    def decoded(self, expert: int) -> torch.Tensor:
        """bfloat16 [N, K] of an expert."""
        codes, scales, zeros = (
            None if each is None else each[expert] for each in (self.codes, self.scales, self.zeros)
        )
        assert codes is not None
        assert scales is not None
        if self.form.number != "e2m1":
            return decode(unpacked(PackedWeight(self.form, codes, scales, zeros, paired=self.paired)))
        of_rows = scales.t().clone(memory_format=torch.contiguous_format).view(torch.uint8)
        exponents = of_rows[:, : self.form.inputs // MX_GROUP].int() - (RAISED if self.paired else 0)
        powers = (exponents << 23).view(torch.float32)
        of_columns = paired(codes_of(codes, "e2m1"))[:, : self.form.inputs // 2]
        return decode(QuantisedWeight("e2m1", of_columns, powers, None, MX_GROUP))


def can_be_fragments(number: Number, outputs: int, inputs: int, group: int) -> bool:
    """Whether weights [outputs, inputs] of which `group` columns share a scale can lie so."""
    if number == "e2m1":
        return outputs % UNIT == inputs % MX_GROUP == 0 and group == MX_GROUP
    return outputs % UNIT == 0 and can_pack(number, inputs, group)


def pieces_of(weight: QuantisedWeight, form: PackedForm) -> Pieces:
    """Codes, scales and zeros as `FragmentExperts` of that form has them, of all or some rows of an expert's weight."""
    if form.number == "e2m1":
        return words_of(halves(weight.codes), "e2m1"), exponents_of(weight.scales), None
    made = pack(weight, form)
    return made.codes, made.scales, made.zeros


def exponents_of(scales: torch.Tensor) -> torch.Tensor:
    """int32 [chunks of K, N], see `FragmentExperts`, of powers of two [N, K / MX_GROUP] from 2^-126 to 2^127."""
    powers = scales.bfloat16()
    outputs, groups = powers.shape
    whole = torch.zeros(outputs, -(-groups // _EXPONENTS) * _EXPONENTS, dtype=torch.uint8, device=scales.device)
    whole[:, :groups] = (powers.view(torch.int16).int() >> 7).to(torch.uint8)
    return whole.view(torch.int32).t()


@triton.jit
def fragment_sums(
    x_at: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    zeros: tl.tensor,
    present: tl.tensor,
    unit: tl.tensor,
    units: tl.tensor,
    inputs: tl.tensor,
    chunks: tl.tensor,
    groups: tl.tensor,
    TOKENS: tl.constexpr,
    NUMBER: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    ZEROS: tl.constexpr,
    PAIRED: tl.constexpr,
) -> Any:
    """`chained_sums` of 64 rows from `unit` on of an expert's weight; pointers to the rows of x [TOKENS, 1].

    codes, scales, zeros: of the expert; COLUMNS: of a chunk. On GPUs that have asynchronous products `hopper_experts`
    is in its place.
    """
    sums = tl.zeros((_ROWS, TOKENS), tl.float32)
    count: tl.constexpr = _DEPTH // COLUMNS
    for start in range(0, inputs, _DEPTH):
        chunk = start // COLUMNS
        words = words_at(codes, unit, units, chunk, chunks, count)
        factors = groups_at(scales, unit, units, chunk, groups, count, COLUMNS, GROUP)
        points = groups_at(zeros, unit, units, chunk, groups, count, COLUMNS, GROUP) if ZEROS else ZERO
        columns = start + tl.arange(0, _DEPTH)
        values = tl.load(x_at + columns[None, :], mask=present & (columns < inputs)[None, :], other=0.0)
        sums = dot(decoded_tile(words, factors, points, NUMBER, PAIRED, count), tl.trans(values), sums)
    return sums
