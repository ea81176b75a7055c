"""Layers of heads in training. Parameters are float32 and are computed with in the type of what comes in."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.common.model import GatedMLP, Linear, Norm
from training.common.model_shape import ModelShape

__all__ = ["Attention", "GatedMLP", "Linear", "Norm", "Rotation", "initialise"]


class Attention(nn.Module):
    """Projections of grouped-query attention whose input is `width` wide."""

    def __init__(self, shape: ModelShape, width: int) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = Linear(width, shape.heads * shape.head_dim)
        self.k_proj = Linear(width, shape.kv_heads * shape.head_dim)
        self.v_proj = Linear(width, shape.kv_heads * shape.head_dim)
        self.o_proj = Linear(shape.heads * shape.head_dim, shape.hidden_size)

    def forward(self, x: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [n, heads, head_dim], keys and values [n, kv_heads, head_dim] of x [n, width], the former two rotated
        by rows of `Rotation.upto`.
        """
        shape = self.shape
        weight = torch.cat((self.q_proj.weight, self.k_proj.weight, self.v_proj.weight)).to(x.dtype)
        # Late steps may have no rows at all, of which a view infers no number of heads.
        joined = F.linear(x, weight).unflatten(-1, (-1, shape.head_dim))
        turned, values = joined.split((shape.heads + shape.kv_heads, shape.kv_heads), dim=1)
        query, keys = rotated(turned, rotation).split((shape.heads, shape.kv_heads), dim=1)
        return query, keys, values


class Rotation:
    """Rotary angles (arXiv 2104.09864) of any positions."""

    def __init__(self, shape: ModelShape, device: torch.device) -> None:
        half = torch.arange(0, shape.head_dim, 2, dtype=torch.float64, device=device) / shape.head_dim
        self._frequencies = shape.rope_theta**-half
        self._table = torch.empty(0, shape.head_dim, device=device)

    def upto(self, positions: int) -> Tensor:
        """float32 [so many or more, head_dim] of position 0 on, cosines, then sines."""
        if len(self._table) < positions:
            places = torch.arange(positions, dtype=torch.float64, device=self._frequencies.device)
            angles = places[:, None] * self._frequencies
            self._table = torch.cat((angles.cos(), angles.sin()), dim=1).float()
        return self._table


def rotated(x: Tensor, rotation: Tensor) -> Tensor:
    """x [n, heads, head_dim], whose halves hold the pairs, by rows of `Rotation.upto`."""
    cos, sin = rotation[:, None].chunk(2, dim=-1)
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def initialise(module: nn.Module, seed: int) -> None:
    """Normal matrices of variance 1 / fan-in, and norms of 1: the same numbers on every device."""
    generator = torch.Generator().manual_seed(seed)
    for _, parameter in sorted(module.named_parameters()):
        if parameter.ndim == 2:
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[1] ** -0.5)
        else:
            parameter.data.fill_(1.0)
