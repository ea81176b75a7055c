"""Weights rounded to fewer bits, each to the nearest value that its scale allows, as compressed-tensors stores them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from slipstream_kernels.models.checkpoint.quantisation.layouts import LARGEST_SCALE, LEAST_SCALE
from slipstream_kernels.models.checkpoint.quantisation.scheme import GROUPS, LINEAR

FormatName = Literal["fp8", "w4a16"]
_LARGEST_E4M3 = 448.0
_AT_ONCE = 1 << 19
"""Elements that are rounded at once: all that is tried with them stays in a CPU's cache."""
_SHRUNK = torch.linspace(1.0, 0.7, 31)
"""Of a group's largest element: a smaller scale cuts it off, and rounds all others less."""


@dataclass(frozen=True, slots=True)
class RoundedFormat:
    """How weights are rounded. group: elements of a row that share a scale of w4a16."""

    name: FormatName
    group: int = 128

    def __post_init__(self) -> None:
        if self.group not in GROUPS:
            raise ValueError(f"group is {self.group}, supported are {', '.join(map(str, GROUPS))}")

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether a weight of this shape can be rounded."""
        return self.name == "fp8" or shape[1] % self.group == 0

    def rounded(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        """The tensors that stand for a bfloat16 weight [N, K], by what follows the module's name and a dot."""
        return rounded_e4m3(weight) if self.name == "fp8" else rounded_int4(weight, self.group)

    def config(self, ignored: list[str]) -> Mapping[str, Any]:
        """`quantization_config` of a model in which all linear layers but the `ignored` are rounded."""
        weights: dict[str, Any] = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
        if self.name == "w4a16":
            weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": self.group, "symmetric": True}
        return {
            "quant_method": "compressed-tensors",
            "format": "float-quantized" if self.name == "fp8" else "pack-quantized",
            "quantization_status": "compressed",
            "ignore": ignored,
            "config_groups": {"group_0": {"targets": [LINEAR], "weights": weights}},
        }


def rounded_e4m3(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """e4m3 with a float32 scale for each row: the largest element becomes the largest number."""
    wide = weight.float()
    scales = (wide.abs().amax(1, keepdim=True) / _LARGEST_E4M3).clamp(LEAST_SCALE, LARGEST_SCALE)
    codes = (wide / scales).clamp(-_LARGEST_E4M3, _LARGEST_E4M3).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scales}


def rounded_int4(weight: torch.Tensor, group: int) -> dict[str, torch.Tensor]:
    """Whole numbers from -8 to 7 with a bfloat16 scale for each group, which of several has the least squared error."""
    outputs, inputs = weight.shape
    groups = weight.view(outputs, inputs // group, group)
    parts = [_best_int4(part.float()) for part in groups.split(max(1, _AT_ONCE // inputs))]
    best = torch.cat([scales for scales, _ in parts])
    codes = torch.cat([part for _, part in parts]).view(outputs, inputs).to(torch.int32) + 8
    words = torch.zeros(outputs, inputs // 8, dtype=torch.int32, device=weight.device)
    for place in range(8):
        words |= codes[:, place::8] << (4 * place)
    return {
        "weight_packed": words,
        "weight_scale": best.squeeze(2).bfloat16(),
        "weight_shape": torch.tensor([outputs, inputs]),
    }


def _best_int4(wide: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales [rows, groups, 1] and codes, int8 as `wide` [rows, groups, elements]."""
    whole = torch.maximum(wide.amax(2, keepdim=True) / 7, -wide.amin(2, keepdim=True) / 8)
    best, least = torch.zeros_like(whole), torch.full_like(whole, torch.inf)
    for part in _SHRUNK.tolist():
        scales = (whole * part).clamp(LEAST_SCALE, LARGEST_SCALE).bfloat16().float()
        error = (_int4(wide, scales) * scales - wide).square_().sum(2, keepdim=True)
        best, least = torch.where(error < least, scales, best), torch.minimum(error, least)
    return best, _int4(wide, best).to(torch.int8)


def _int4(wide: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return (wide / scales).round_().clamp_(-8, 7)
