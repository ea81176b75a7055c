"""Experts in MXFP4: floats of four bits, 32 of which share a power of two (OCP Microscaling Formats, version 1.0)."""

from __future__ import annotations

import torch

from slipstream_kernels.models.checkpoint.config_fields import CheckpointError
from slipstream_kernels.ops.quantised_weight import QuantisedWeight

BLOCKS, SCALES = "_blocks", "_scales"
"""How names of the two tensors end."""
GROUP = 32
"""Elements that share a scale."""
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
    powers = ((exponents + _BIAS) << 23).view(torch.float32).bfloat16()
    return [
        QuantisedWeight("e2m1", packed.flatten(1), scale, None, GROUP)
        for packed, scale in zip(blocks, powers, strict=True)
    ]
