"""Ops of linear layers whose weights are in bfloat16 or packed, made of ops of bfloat16 weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from slipstream_kernels.ops.gpu.fp8_linear.fp8_weight import Fp8Weight
from slipstream_kernels.ops.gpu.packed.decode_weight import decode_weight
from slipstream_kernels.ops.gpu.packed.packed_linear import (
    decodes_in_registers,
    gated_linear_in_room,
    linear_in_room,
    packed_gated_linear,
    packed_linear,
)
from slipstream_kernels.ops.gpu.packed.packed_weight import PackedWeight

Op = Callable[..., None]
Weight = torch.Tensor | PackedWeight
LayerWeight = Weight | Fp8Weight
"""Of a layer below the head."""
Choice = Callable[..., bool]
"""As `decodes_in_registers`."""


def any_linear(dense: Op, *, in_registers: Choice = decodes_in_registers, decode: Op = decode_weight) -> Op:
    """`linear` by `dense`, of a packed weight behind `decode` unless it is decoded `in_registers`."""

    def op(x: torch.Tensor, weight: Weight, out: torch.Tensor, **addends: Any) -> None:
        if not isinstance(weight, PackedWeight):
            dense(x, weight, out, **addends)
        elif in_registers(weight, len(x), gated=False):
            packed_linear(x, weight, out, **addends)
        else:
            linear_in_room(x, weight, out, dense=dense, decode=decode, **addends)

    return op


def any_gated_linear(dense: Op, *, in_registers: Choice = decodes_in_registers, decode: Op = decode_weight) -> Op:
    """`gated_linear` in the same way."""

    def op(x: torch.Tensor, weight: Weight, out: torch.Tensor) -> None:
        if not isinstance(weight, PackedWeight):
            dense(x, weight, out)
        elif in_registers(weight, len(x), gated=True):
            packed_gated_linear(x, weight, out)
        else:
            gated_linear_in_room(x, weight, out, dense=dense, decode=decode)

    return op


def dense_or_in_steps(dense: Op, in_two_steps: Op) -> Op:
    """A layer and what goes with it by `dense`; of packed weights `in_two_steps`."""

    def op(x: torch.Tensor, weight: Weight, *operands: Any, **more: Any) -> None:
        (in_two_steps if isinstance(weight, PackedWeight) else dense)(x, weight, *operands, **more)

    return op


def never(weight: PackedWeight, rows: int, *, gated: bool) -> bool:  # noqa: ARG001  # a `Choice`
    """Every packed weight is decoded to its room."""
    return False
