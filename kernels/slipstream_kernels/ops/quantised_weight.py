"""A weight of 8 or 4 bits an element, and the one definition of the bfloat16 weight that it stands for.

Whatever computes with a quantised weight gives the bits that the same layer gives with `decode` of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

Number = Literal["e4m3", "int8", "int4", "e2m1"]
"""What a code is: a float of 4 bits of exponent and 3 of mantissa (arXiv 2209.05433), or of 2 and 1 (OCP Microscaling
Formats, version 1.0), or an unsigned integer."""

PAIRED: tuple[Number, ...] = ("int4", "e2m1")
"""Of codes of 4 bits."""

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Numbers without their sign, the highest bit."""

_ROWS_BYTES = 1 << 26
"""Of the float32 values that are decoded at a time."""


@dataclass(frozen=True, slots=True)
class QuantisedWeight:
    """A weight [N, K] whose elements share a scale, and a zero point, along `group` of K; the last group may be short.

    codes: uint8 [N, K]; of `PAIRED` ones [N, K / 2], whose low halves are the even elements.
    scales: float16, bfloat16 or float32 [N, ceil(K / group)].
    zeros: int16 of the same shape, of integers; None: half of the range of codes.
    """

    number: Number
    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    group: int

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        outputs, width = self.codes.shape
        return outputs, width * 2 if self.number in PAIRED else width

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(each.nbytes for each in (self.codes, self.scales, self.zeros) if each is not None)

    def to(self, device: torch.device | str) -> QuantisedWeight:
        """The same on a device."""
        zeros = None if self.zeros is None else self.zeros.to(device)
        return QuantisedWeight(self.number, self.codes.to(device), self.scales.to(device), zeros, self.group)

    def rows(self, index: torch.Tensor | slice) -> QuantisedWeight:
        """The rows that `index` names, in its order."""
        zeros = None if self.zeros is None else self.zeros[index]
        return QuantisedWeight(self.number, self.codes[index], self.scales[index], zeros, self.group)

    def columns(self, start: int, stop: int) -> QuantisedWeight:
        """Columns from `start` to `stop`, which are a multiple of 2, and of `group` where that is less than a row."""
        part = slice(start // 2, stop // 2) if self.number in PAIRED else slice(start, stop)
        scales, zeros = self.scales, self.zeros
        if self.group < self.shape[1]:
            assert start % self.group == stop % self.group == 0
            groups = slice(start // self.group, stop // self.group)
            scales, zeros = scales[:, groups], None if zeros is None else zeros[:, groups]
        return QuantisedWeight(self.number, self.codes[:, part], scales, zeros, self.group)


def halves(codes: torch.Tensor) -> torch.Tensor:
    """Two codes of 4 bits of each byte [N, K / 2] side by side: uint8 [N, K]."""
    return torch.stack((codes & 15, codes >> 4), -1).flatten(1)


def paired(codes: torch.Tensor) -> torch.Tensor:
    """The inverse of `halves`."""
    return codes[:, ::2] | codes[:, 1::2] << 4


def decode(weight: QuantisedWeight) -> torch.Tensor:
    """bfloat16 [N, K]: float32(code - zero) * float32(scale), rounded to nearest even, ties to even.

    The product is float32's, rounded once; it is exact unless the scale has more than 16 significant bits.
    """
    outputs, inputs = weight.shape
    out = torch.empty(outputs, inputs, dtype=torch.bfloat16, device=weight.codes.device)
    step = max(1, _ROWS_BYTES // (4 * inputs))
    for start in range(0, outputs, step):
        part = slice(start, start + step)
        out[part] = _decoded(weight.rows(part))
    return out


def _decoded(weight: QuantisedWeight) -> torch.Tensor:
    if weight.number == "e4m3":
        values = weight.codes.view(torch.float8_e4m3fn).float()
    elif weight.number == "e2m1":
        values = torch.tensor([*_E2M1, *(-value for value in _E2M1)], device=weight.codes.device)[
            halves(weight.codes).int()
        ]
    else:
        values = (halves(weight.codes) if weight.number == "int4" else weight.codes).float()
        values -= implied_zero(weight.number) if weight.zeros is None else _spread(weight.zeros.float(), weight)
    return (values * _spread(weight.scales.float(), weight)).bfloat16()


def _spread(groups: torch.Tensor, weight: QuantisedWeight) -> torch.Tensor:
    """The value of each element's group."""
    if groups.shape[1] == 1:
        return groups
    return groups.repeat_interleave(weight.group, 1)[:, : weight.shape[1]]


def implied_zero(number: Number) -> int:
    """The zero point of a weight that has none of its own."""
    return {"e4m3": 0, "e2m1": 0, "int8": 128, "int4": 8}[number]


def doubled(weight: QuantisedWeight) -> QuantisedWeight:
    """A weight of e2m1 as one of int8 with half the scales, which decodes to the same."""
    table = torch.tensor([implied_zero("int8") + round(2 * sign * value) for sign in (1, -1) for value in _E2M1])
    codes = table.to(torch.uint8)[halves(weight.codes).int()]
    return QuantisedWeight("int8", codes, weight.scales / 2, None, weight.group)


def stacked(parts: Sequence[QuantisedWeight]) -> QuantisedWeight | None:
    """Weights of one K above one another, each element with the scale it has.

    None where one weight cannot hold them: they differ in numbers, or in groups that do not divide one another.
    """
    number, inputs = parts[0].number, parts[0].shape[1]
    group = min(part.group for part in parts)
    for part in parts:
        whole = part.group >= inputs  # one group, which any groups divide
        if part.number != number or not (whole or part.group % group == 0):
            return None
    zeros = None
    if any(part.zeros is not None for part in parts):
        zeros = torch.cat([regrouped(_zeros(part), part, group) for part in parts])
    dtypes = {part.scales.dtype for part in parts}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    scales = torch.cat([regrouped(part.scales.to(dtype), part, group) for part in parts])
    return QuantisedWeight(number, torch.cat([part.codes for part in parts]), scales, zeros, group)


def _zeros(weight: QuantisedWeight) -> torch.Tensor:
    if weight.zeros is not None:
        return weight.zeros
    return torch.full(weight.scales.shape, implied_zero(weight.number), dtype=torch.int16)


def regrouped(groups: torch.Tensor, weight: QuantisedWeight, group: int) -> torch.Tensor:
    """Scales or zero points of a weight's groups by smaller groups, of `group` columns, that divide them."""
    inputs = weight.shape[1]
    count = -(-inputs // group)
    return groups.repeat_interleave(-(-min(weight.group, inputs) // group), 1)[:, :count]
