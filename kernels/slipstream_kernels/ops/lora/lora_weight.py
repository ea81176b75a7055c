"""What a LoRA adapter adds to one linear layer: B (A x) * scale (arXiv 2106.09685)."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
class LoraWeight:
    """bfloat16 `a` [rank, inputs] and `b` [outputs, rank]; `scale` multiplies the sums of A x."""

    a: torch.Tensor
    b: torch.Tensor
    scale: float

    @property
    def rank(self) -> int:
        return self.a.shape[0]


def lora_reference(x: torch.Tensor, weight: LoraWeight) -> torch.Tensor:
    """x [rows, inputs] to what is added to a layer's output, [rows, outputs], in the dtype of x."""
    return (x @ weight.a.to(x.dtype).T * weight.scale) @ weight.b.to(x.dtype).T
