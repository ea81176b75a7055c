"""Places of a checkpoint's tensors among the weights on a device, which may be packed and shared by ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from slipstream_kernels.models.gpu.ranks.shard import Shard
from slipstream_kernels.ops.gpu.fp8_linear.fp8_weight import Fp8Weight
from slipstream_kernels.ops.gpu.gate_up import GROUP, gate_up_views
from slipstream_kernels.ops.gpu.packed.any_linear import LayerWeight
from slipstream_kernels.ops.gpu.packed.packed_weight import UNIT, PackedWeight, pack
from slipstream_kernels.ops.quantised_weight import QuantisedWeight, decode

AnyTensor = torch.Tensor | QuantisedWeight
"""A tensor of a checkpoint."""

Copy = Callable[[torch.Tensor, torch.Tensor], object]
"""Copies the first to the second, of equal shapes."""


def plain_copy(source: torch.Tensor, target: torch.Tensor) -> None:
    """As torch does it."""
    target.copy_(source)


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor, or a part of a packed weight.

    views: of the tensor, or of the codes, scales and zero points, whose outputs may be in groups of 8.
    axis: along which ranks share the checkpoint's tensor; None: each has all of it.
    """

    packed: PackedWeight | Fp8Weight | None
    views: tuple[torch.Tensor | None, ...]
    axis: int | None

    @classmethod
    def stacked(cls, weight: LayerWeight, sizes: Sequence[int]) -> list[Place]:
        """The places of modules of so many outputs each, above one another."""

        def split(tensor: torch.Tensor, axis: int, unit: int) -> Sequence[torch.Tensor]:
            parts: tuple[torch.Tensor, ...] = tensor.split([size // unit for size in sizes], axis)
            return parts

        return cls._parts(weight, split)

    @classmethod
    def gate_up(cls, weight: LayerWeight) -> list[Place]:
        """The places of gate and up, in the order of ops/gpu/gate_up.py."""

        def split(tensor: torch.Tensor, axis: int, unit: int) -> Sequence[torch.Tensor]:
            if unit == 1:
                return gate_up_views(tensor, axis)
            assert unit == GROUP
            return [tensor[first::2] for first in range(2)]

        return cls._parts(weight, split)

    @classmethod
    def of(cls, weight: LayerWeight, axis: int | None) -> Place:
        """The whole of a weight."""
        if isinstance(weight, torch.Tensor):
            return cls(None, (weight,), axis)
        if isinstance(weight, Fp8Weight):
            return cls(weight, (weight.codes, weight.scales), axis)
        return cls(weight, (weight.codes, weight.scales, weight.zeros), axis)

    @classmethod
    def _parts(
        cls, weight: LayerWeight, split: Callable[[torch.Tensor, int, int], Sequence[torch.Tensor]]
    ) -> list[Place]:
        """`split`: a tensor along an axis, of which `unit` outputs are one."""
        if isinstance(weight, torch.Tensor):
            return [cls(None, (view,), 0) for view in split(weight, 0, 1)]
        if isinstance(weight, Fp8Weight):
            views = zip(split(weight.codes, 0, 1), split(weight.scales, 0, 1), strict=True)
            return [cls(weight, each, 0) for each in views]
        codes, scales = split(weight.codes, 0, UNIT), split(weight.scales, 1, 1)
        zeros = [None] * len(codes) if weight.zeros is None else split(weight.zeros, 1, 1)
        return [cls(weight, views, 0) for views in zip(codes, scales, zeros, strict=True)]

    def fill(self, tensor: AnyTensor, shard: Shard, copy: Copy = plain_copy) -> None:
        """Write the rank's part of a tensor here by `copy`: rounded to bfloat16, decoded or packed."""
        device = next(view.device for view in self.views if view is not None)
        if self.packed is None:
            whole = decode(tensor.to(device)) if isinstance(tensor, QuantisedWeight) else tensor
            parts: Sequence[torch.Tensor | None] = [part_of(whole, self.axis, shard)]
        else:
            assert isinstance(tensor, QuantisedWeight)
            part = quantised_part(tensor, self.axis, shard).to(device)
            if isinstance(self.packed, Fp8Weight):
                assert part.scales.shape[1] == 1
                parts = [part.codes, part.scales.float()]
            else:
                made = pack(part, self.packed.form)
                parts = [made.codes, made.scales, made.zeros]
        for view, own in zip(self.views, parts, strict=True):
            if view is not None and own is not None:
                copy(own.reshape(view.shape), view)


def part_of(tensor: torch.Tensor, axis: int | None, shard: Shard) -> torch.Tensor:
    """The rank's part of a tensor that ranks share along `axis`."""
    if axis is None or shard.size == 1:
        return tensor
    width = tensor.shape[axis] // shard.size
    return tensor.narrow(axis, shard.rank * width, width)


def quantised_part(weight: QuantisedWeight, axis: int | None, shard: Shard) -> QuantisedWeight:
    """The rank's part of a weight that ranks share along `axis`."""
    if axis is None or shard.size == 1:
        return weight
    width = weight.shape[axis] // shard.size
    start = shard.rank * width
    return weight.columns(start, start + width) if axis else weight.rows(slice(start, start + width))
