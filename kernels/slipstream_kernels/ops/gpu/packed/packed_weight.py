"""A quantised weight as the GPU's kernels read it: repacked once, when it is loaded."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from slipstream_kernels.ops.quantised_weight import Number, QuantisedWeight, halves

STEP = 256
"""Columns of int4 whose codes lie in words of their own: bits 4 i to 4 i + 3 of word j hold column PLANE i + j."""

PLANE = STEP // 8

GROUPS = (32, 64, 128)
"""Columns that may share a scale, where not all of a row do."""


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight [N, K], of which `decode` of the `QuantisedWeight` says what it stands for.

    codes: uint8 [N, K]; of int4, int32 [N, PLANE ceil(K / STEP)], whose columns beyond K are 0.
    scales: float32 [groups of K, N], the zero points too. Without zero points of its own a weight has its number's.
    group: columns that share a scale; 0: all.
    """

    number: Number
    inputs: int
    group: int
    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return len(self.codes), self.inputs

    @property
    def device(self) -> torch.device:
        return self.codes.device

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(each.nbytes for each in (self.codes, self.scales, self.zeros) if each is not None)

    def __len__(self) -> int:
        return len(self.codes)

    def to(self, device: torch.device | str) -> PackedWeight:
        """The same on a device."""
        zeros = None if self.zeros is None else self.zeros.to(device)
        return replace(self, codes=self.codes.to(device), scales=self.scales.to(device), zeros=zeros)


def can_pack(number: Number, inputs: int, group: int) -> bool:
    """Whether the kernels compute with a weight of so many columns, `group` of which share a scale."""
    assert number in ("e4m3", "int8", "int4")
    return inputs % 16 == 0 and (group >= inputs or group in GROUPS)


def packed_bytes(number: Number, outputs: int, inputs: int, group: int, *, zeros: bool) -> int:
    """Of a packed weight's tensors."""
    groups = 1 if group >= inputs else -(-inputs // group)
    codes = 4 * PLANE * -(-inputs // STEP) if number == "int4" else inputs
    return outputs * (codes + 4 * groups * (1 + zeros))


def pack(weight: QuantisedWeight) -> PackedWeight:
    """A copy on the weight's device, of a weight that `can_pack`."""
    inputs = weight.shape[1]
    assert can_pack(weight.number, inputs, weight.group)
    codes = _words(weight.codes, inputs) if weight.number == "int4" else weight.codes.contiguous()
    zeros = None if weight.zeros is None else weight.zeros.float().t().contiguous()
    scales = weight.scales.float().t().contiguous()
    return PackedWeight(weight.number, inputs, 0 if weight.group >= inputs else weight.group, codes, scales, zeros)


def _words(codes: torch.Tensor, inputs: int) -> torch.Tensor:
    steps = -(-inputs // STEP)
    whole = torch.zeros(len(codes), steps * STEP, dtype=torch.uint8, device=codes.device)
    whole[:, :inputs] = halves(codes)
    planes = whole.view(len(codes), steps, 4, 2, PLANE)
    # Byte b of a word holds planes 2 b and 2 b + 1; words are stored lowest byte first.
    pairs = planes[:, :, :, 0] | planes[:, :, :, 1] << 4
    return pairs.permute(0, 1, 3, 2).contiguous().view(torch.int32).view(len(codes), steps * PLANE)
