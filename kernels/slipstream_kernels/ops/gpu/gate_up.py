"""The order in which the weights of a gated layer lie: gate and up take turns in groups of eight rows.

A matrix instruction leaves rows r and r + 8 of its result in one thread. In this order they are the gate and the up sum
of one output, so that a gated layer is one plain product whose result every thread gates by itself.
"""

from __future__ import annotations

import torch

GROUP = 8


def gate_up_views(tensor: torch.Tensor, dim: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of the gate and the up part of `tensor`, whose `dim` of 2 n in this order becomes two: [n / 8, 8].

    Raises ValueError unless n is a multiple of 8.
    """
    if tensor.shape[dim] % (2 * GROUP):
        raise ValueError(f"a gated layer has outputs in groups of {GROUP}, not {tensor.shape[dim] / 2:g} of them")
    gate, up = tensor.unflatten(dim, (-1, 2, GROUP)).unbind(dim % tensor.dim() + 1)
    return gate, up


def interleave_gate_up(weight: torch.Tensor) -> torch.Tensor:
    """A copy in this order of `weight` [2 n, ..], which holds the gate's rows and then up's."""
    ordered = torch.empty_like(weight)
    for view, part in zip(gate_up_views(ordered), weight.chunk(2), strict=True):
        view.copy_(part.unflatten(0, (-1, GROUP)))
    return ordered


def separate_gate_up(tensor: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """The inverse along `dim`: the gate's part of a copy of `tensor`, then up's."""
    first = dim % tensor.dim()
    return torch.cat([part.flatten(first, first + 1) for part in gate_up_views(tensor, dim)], dim=first)
