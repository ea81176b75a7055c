"""Weights rounded to fewer bits, each to the nearest value that its scale allows, as compressed-tensors stores them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from slipstream_kernels.models.checkpoint.quantisation.int4_search import nearest_int4
from slipstream_kernels.models.checkpoint.quantisation.layouts import LARGEST_SCALE, LEAST_SCALE
from slipstream_kernels.models.checkpoint.quantisation.scheme import GROUPS, LINEAR

FormatName = Literal["fp8", "w4a16"]
_LARGEST_E4M3 = 448.0
_SCALE_BYTES, _SHAPE_BYTES = 4, 16
_AT_ONCE = 1 << 23
"""Elements that are rounded at once."""
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

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Of the tensors of `rounded`, for a weight [N, K]."""
        outputs, inputs = shape
        if self.name == "fp8":
            return outputs * (inputs + _SCALE_BYTES)
        return outputs * (inputs // 2 + 2 * inputs // self.group) + _SHAPE_BYTES

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
    scales = _divided(wide.abs().amax(1, keepdim=True), _LARGEST_E4M3).clamp(LEAST_SCALE, LARGEST_SCALE)
    codes = (wide / scales).clamp(-_LARGEST_E4M3, _LARGEST_E4M3).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scales}


def _divided(values: torch.Tensor, divisor: float) -> torch.Tensor:
    """Rounded once on all devices, some of which multiply by the reciprocal of a number that is no tensor."""
    return values / values.new_full((), divisor)


def rounded_int4(weight: torch.Tensor, group: int) -> dict[str, torch.Tensor]:
    """Whole numbers from -8 to 7 with a bfloat16 scale for each group, which of several has the least squared error."""
    outputs, inputs = weight.shape
    step = max(1, _AT_ONCE // inputs)
    parts = [_int4_rows(weight[start : start + step], group) for start in range(0, outputs, step)]
    return {
        "weight_packed": torch.cat([words for words, _ in parts]),
        "weight_scale": torch.cat([scales for _, scales in parts]),
        "weight_shape": torch.tensor([outputs, inputs]),
    }


def _int4_rows(weight: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed codes int32 [rows, inputs / 8] and scales [rows, groups]."""
    wide = weight.float().view(-1, group)
    whole = torch.maximum(_divided(wide.amax(1), 7), _divided(-wide.amin(1), 8))
    tried = (whole[:, None] * _SHRUNK.to(weight.device)).clamp(LEAST_SCALE, LARGEST_SCALE).bfloat16().float()
    scales, codes = nearest_int4(wide, tried)
    codes = (codes.view(len(weight), -1) + 8).view(torch.uint8)
    pairs = codes[:, ::2] | codes[:, 1::2] << 4
    return pairs.view(torch.int32), scales.bfloat16().view(len(weight), -1)
