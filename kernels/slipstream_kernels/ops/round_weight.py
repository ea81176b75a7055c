"""Weights rounded to the numbers of a `QuantisedWeight`, each to the nearest one of a group's scale."""

from __future__ import annotations

import torch

from slipstream_kernels.ops.quantised_weight import PAIRED, Number, QuantisedWeight, implied_zero, paired

_LARGEST = {"e4m3": 448.0, "int8": 127.0, "int4": 7.0, "e2m1": 6.0}
_E2M1_MIDST = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Between the sizes of e2m1."""


def round_weight(weight: torch.Tensor, number: Number, group: int, *, zeros: bool = False) -> QuantisedWeight:
    """A weight [N, K] whose groups' largest elements are the largest numbers, or, of e2m1, not more than those.

    Scales are bfloat16, of e2m1 powers of two. zeros: zero points are there, though all are the implied ones.
    """
    inputs = weight.shape[1]
    group = min(group, inputs)
    wide = weight.float()
    groups = torch.nn.functional.pad(wide, (0, -inputs % group)).view(len(wide), -1, group)
    steps = (groups.abs().amax(2) / _LARGEST[number]).clamp_min(2.0**-60)
    steps = steps.log2().ceil().exp2() if number == "e2m1" else steps
    scales = steps.bfloat16()
    quotients = (groups / scales.float()[:, :, None]).flatten(1)[:, :inputs]
    points = torch.full(scales.shape, implied_zero(number), dtype=torch.int16, device=weight.device)
    return QuantisedWeight(number, _codes(quotients, number), scales, points if zeros else None, group)


def _codes(quotients: torch.Tensor, number: Number) -> torch.Tensor:
    if number == "e4m3":
        return quotients.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    if number == "e2m1":
        midst = torch.tensor(_E2M1_MIDST, device=quotients.device)
        codes = torch.bucketize(quotients.abs(), midst).to(torch.uint8) | (quotients < 0).to(torch.uint8) << 3
    else:
        half = implied_zero(number)
        codes = (quotients.round().clamp(-half, half - 1) + half).to(torch.uint8)
    return paired(codes) if number in PAIRED else codes
