"""A quantised weight as the GPU's kernels read it: repacked once, when it is loaded.

Codes lie in the order in which the threads of a matrix instruction hold them (PTX ISA, wgmma, fragments of A): eight
rows, a unit, and a chunk of columns are 16 bytes of 32 threads each. Thread 4 r + c of a unit has elements of row r:
code 2 s + h of its word 2 p + e, from the lowest bits on, is column (chunk / 2) p + 16 s + 8 h + 2 c + e of the chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from slipstream_kernels.ops.quantised_weight import (
    PAIRED,
    Number,
    QuantisedWeight,
    halves,
    implied_zero,
    paired,
    regrouped,
)

UNIT = 8
"""Rows."""

WORDS = 128
"""Of a unit and a chunk."""

GROUPS: dict[Number, tuple[int, ...]] = {"e4m3": (64, 128), "int8": (64, 128), "int4": (128,)}
"""Columns that may share a scale, where not all of a row do."""


def chunk_of(number: Number) -> int:
    """Columns of a chunk."""
    return 128 if number in PAIRED else 64


@dataclass(frozen=True, slots=True)
class PackedForm:
    """How a weight [outputs, inputs] is packed. group: columns that share a scale; 0: all. zeros: of its own."""

    number: Number
    outputs: int
    inputs: int
    group: int
    zeros: bool

    @property
    def groups(self) -> int:
        """Of a row."""
        return -(-self.inputs // self.group) if self.group else 1

    @property
    def units(self) -> int:
        return -(-self.outputs // UNIT)

    @property
    def chunks(self) -> int:
        return -(-self.inputs // chunk_of(self.number))

    @property
    def nbytes(self) -> int:
        """Of a packed weight's tensors."""
        return 4 * self.units * (self.chunks * WORDS + UNIT * self.groups * (1 + self.zeros))

    def empty(self, device: torch.device | str, room: torch.Tensor | None = None) -> PackedWeight:
        """A weight whose contents are undefined, but for rows beyond its own, which are zero."""
        codes = torch.empty(self.units, self.chunks, WORDS, dtype=torch.int32, device=device)
        scales = torch.zeros(self.groups, self.units * UNIT, device=device)
        zeros = torch.zeros_like(scales) if self.zeros else None
        return PackedWeight(self, codes, scales, zeros, room)


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight [N, K], of which `decode` of the `QuantisedWeight` says what it stands for.

    codes: int32 [units of N, chunks of K, WORDS]; columns beyond K are 0.
    scales: float32 [groups of K, units * UNIT], the zero points too. Without zero points of its own a weight has its
    number's. `paired`: scales are int32, of which both halves are the scale in bfloat16.
    room: bfloat16, where layers of many rows decode the weight; layers that follow one another may share it.
    """

    form: PackedForm
    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    room: torch.Tensor | None = None
    paired: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.form.outputs, self.form.inputs

    @property
    def device(self) -> torch.device:
        return self.codes.device

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors but the room."""
        return sum(each.nbytes for each in (self.codes, self.scales, self.zeros) if each is not None)

    def __len__(self) -> int:
        return self.form.outputs

    def rows(self, index: torch.Tensor | slice) -> PackedWeight:
        """A copy of the rows that `index` names, in its order."""
        return replace(pack(unpacked(self).rows(index)).settled(), room=self.room)

    def settled(self) -> PackedWeight:
        """The same, of int4 in pairs where bfloat16 has all of its scales: then one product of bfloat16 decodes it."""
        if self.paired or self.form.number != "int4":
            return self
        scales = paired_scales(self.scales)
        return self if scales is None else replace(self, scales=scales, paired=True)


def paired_scales(scales: torch.Tensor) -> torch.Tensor | None:
    """float32 scales as int32, of which both halves are the scale in bfloat16, in their room; None: it has not all."""
    short = scales.bfloat16()
    if not torch.equal(short.float(), scales):
        return None
    halves = short.view(torch.int16).to(torch.int32) & 0xFFFF
    return scales.view(torch.int32).copy_(halves | halves << 16)


def can_pack(number: Number, inputs: int, group: int) -> bool:
    """Whether the kernels compute with a weight of so many columns, `group` of which share a scale."""
    assert number in GROUPS
    return inputs % 16 == 0 and (group >= inputs or group in GROUPS[number])


def form_of(weight: QuantisedWeight) -> PackedForm:
    """How a weight that `can_pack` is packed by itself."""
    outputs, inputs = weight.shape
    group = 0 if weight.group >= inputs else weight.group
    return PackedForm(weight.number, outputs, inputs, group, weight.zeros is not None)


def pack(weight: QuantisedWeight, form: PackedForm | None = None) -> PackedWeight:
    """A copy on the weight's device, of a weight that `can_pack`.

    form: of a weight that this one becomes a part of, whose groups divide this one's; the outputs are not looked at.
    """
    outputs, inputs = weight.shape
    assert can_pack(weight.number, inputs, weight.group)
    own = form_of(weight)
    form = own if form is None else replace(form, outputs=outputs)
    assert (form.number, form.inputs) == (weight.number, inputs)
    assert form.zeros or not own.zeros
    made = form.empty(weight.codes.device)
    made.codes.copy_(words_of(halves(weight.codes) if form.number in PAIRED else weight.codes, form.number))
    made.scales[:, :outputs] = regrouped(weight.scales.float(), weight, form.group or inputs).t()
    if made.zeros is not None:
        if weight.zeros is None:
            made.zeros.fill_(implied_zero(weight.number))
        else:
            made.zeros[:, :outputs] = regrouped(weight.zeros.float(), weight, form.group or inputs).t()
    return made


def unpacked(weight: PackedWeight) -> QuantisedWeight:
    """The inverse of `pack`; scales are float32."""
    outputs, inputs = weight.shape
    codes = codes_of(weight.codes, weight.form.number)[:outputs, :inputs]
    codes = paired(codes) if weight.form.number in PAIRED else codes.contiguous()
    scales = scales_of(weight)[:, :outputs].t().contiguous()
    zeros = None if weight.zeros is None else weight.zeros[:, :outputs].t().to(torch.int16).contiguous()
    return QuantisedWeight(weight.form.number, codes, scales, zeros, weight.form.group or inputs)


def scales_of(weight: PackedWeight) -> torch.Tensor:
    """float32, of the shape of `weight.scales`."""
    return (weight.scales << 16).view(torch.float32) if weight.paired else weight.scales


def _split(number: Number) -> tuple[int, ...]:
    """Sizes of (row r, chunk, p, s, h, c, e) of a unit; as many chunks as there are."""
    return UNIT, -1, 2, chunk_of(number) // 32, 2, 4, 2


def words_of(codes: torch.Tensor, number: Number) -> torch.Tensor:
    """int32 [units, chunks, WORDS] of uint8 codes [N, K]; codes beyond N and K are 0."""
    chunk = chunk_of(number)
    units, chunks = -(-codes.shape[0] // UNIT), -(-codes.shape[1] // chunk)
    whole = torch.zeros(units * UNIT, chunks * chunk, dtype=torch.uint8, device=codes.device)
    whole[: codes.shape[0], : codes.shape[1]] = codes
    places = whole.view(units, *_split(number)).permute(0, 2, 1, 6, 3, 7, 4, 5).reshape(units, chunks, WORDS, -1)
    if number in PAIRED:
        places = places[..., ::2] | places[..., 1::2] << 4
    return places.contiguous().view(torch.int32).squeeze(-1)


def codes_of(words: torch.Tensor, number: Number) -> torch.Tensor:
    """The inverse of `words_of`, with the codes beyond N and K."""
    places = words.contiguous().unsqueeze(-1).view(torch.uint8)
    if number in PAIRED:
        places = torch.stack((places & 15, places >> 4), -1)
    rows, _, p, s, h, c, e = _split(number)
    order = places.reshape(*words.shape[:2], rows, c, p, e, s, h).permute(0, 2, 1, 4, 6, 7, 3, 5)
    return order.reshape(len(words) * rows, -1)
