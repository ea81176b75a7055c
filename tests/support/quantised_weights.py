"""Random quantised weights, adversarial ones among them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from slipstream_kernels.ops.quantised_weight import PAIRED, QuantisedWeight

NUMBERS = ("e4m3", "int8", "int4")


def random_weight(
    number: Any,
    outputs: int,
    inputs: int,
    *,
    group: int,
    zeros: bool = False,
    seed: int = 0,
    dtype: torch.dtype = torch.float16,
    hostile: bool = False,
) -> QuantisedWeight:
    """Any code but NaN, scales of both signs and many sizes, zero points from end to end.

    hostile: scales of float32 from 2^-90 to 2^90, some of them 0, and as many significant bits as the type has.
    """
    generator = torch.Generator().manual_seed(seed)
    width = inputs // 2 if number in PAIRED else inputs
    codes = torch.randint(0, 256, (outputs, width), generator=generator, dtype=torch.uint8)
    if number == "e4m3":
        codes[(codes & 0x7F) == 0x7F] = 0x80
    shape = (outputs, -(-inputs // group))
    scales = torch.randn(shape, generator=generator) * 2.0 ** torch.randint(-12, -4, shape, generator=generator)
    if hostile:
        dtype = torch.float32
        scales = torch.randn(shape, generator=generator).clamp(-1.9, 1.9)
        scales = scales * 2.0 ** torch.randint(-88, 89, shape, generator=generator)
        scales[torch.rand(shape, generator=generator) < 0.1] = 0
    points = None
    if zeros:
        most = {"int8": 257, "int4": 17}[number]
        points = torch.randint(0, most, shape, generator=generator).short()
    return QuantisedWeight(number, codes, scales.to(dtype), points, group)


def usual_weight(
    number: Any,
    outputs: int,
    inputs: int,
    *,
    group: int,
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    deviation: float = 100,
) -> QuantisedWeight:
    """As rounding makes them of random weights: scales above zero, few codes of e4m3 near zero, no zero points.

    deviation: of e4m3's numbers, of which the largest is 448.
    """
    generator = torch.Generator().manual_seed(seed)
    weight = random_weight(number, outputs, inputs, group=group, seed=seed, dtype=dtype)
    if number == "e4m3":
        numbers = torch.randn(outputs, inputs, generator=generator) * deviation
        weight.codes.copy_(numbers.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8))
    return QuantisedWeight(number, weight.codes, weight.scales.abs() + 2.0**-20, None, group)


def bits_of(tensor: torch.Tensor) -> np.ndarray:
    """uint16 of bfloat16."""
    return tensor.contiguous().view(torch.uint16).numpy()
