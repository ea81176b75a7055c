"""Experts in MXFP4: floats of four bits, 32 of which share a power of two (OCP Microscaling Formats, version 1.0).

Twice a number of e2m1 is a whole one from -12 to 12: a weight is held as int8 with half the scale, which decodes to the
same bfloat16 numbers, without rounding.
"""

from __future__ import annotations

import torch

from slipstream_kernels.models.checkpoint.config_fields import CheckpointError
from slipstream_kernels.ops.quantised_weight import QuantisedWeight, halves, implied_zero

BLOCKS, SCALES = "_blocks", "_scales"
"""How names of the two tensors end."""
GROUP = 32
"""Elements that share a scale."""
_TWICE = (0, 1, 2, 3, 4, 6, 8, 12)
"""Numbers of e2m1 without their sign, doubled."""
_BIAS = 127
"""Of exponents, as float32 has them too."""
_LARGEST = 90
"""Of exponents, so that products stay float32's normal numbers."""


def mxfp4_weights(blocks: torch.Tensor, scales: torch.Tensor, where: str) -> list[QuantisedWeight]:
    """uint8 blocks [experts, N, K / 32, 16], the even elements in the low halves, and exponents [experts, N, K / 32].

    Raises CheckpointError for scales that are no numbers, or are beyond 2^90 or below 2^-90.
    """
    exponents = scales.to(torch.int32) - _BIAS
    if (exponents.abs() > _LARGEST).any():
        value = int(exponents[exponents.abs() > _LARGEST].flatten()[0]) + _BIAS
        raise CheckpointError(f"{where}{SCALES} holds {value}, must be from {_BIAS - _LARGEST} to {_BIAS + _LARGEST}")
    zero = implied_zero("int8")
    table = torch.tensor([zero + sign * value for sign in (1, -1) for value in _TWICE], dtype=torch.uint8)
    weights = []
    for packed, exponent in zip(blocks, exponents, strict=True):
        codes = table[halves(packed.flatten(1)).int()]
        scale = ((exponent - 1 + _BIAS) << 23).view(torch.float32).bfloat16()
        weights.append(QuantisedWeight("int8", codes, scale, None, GROUP))
    return weights
