"""The weights of a layer of experts on a device, in bfloat16."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from slipstream_kernels.models.checkpoint.expert_names import PARTS, ROUTER, SHARED_GATE
from slipstream_kernels.models.gpu.forward.weight_places import Place
from slipstream_kernels.models.gpu.ranks.shard import Shard

_EXPERT = re.compile(r"mlp\.experts\.(\d+)\.(\w+)\.(weight|bias)")


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """bfloat16, contiguous; sizes are the shard's: each rank has an equal part of every expert's intermediate size."""

    router: torch.Tensor
    """[experts, hidden], and behind them the shared expert's line if there is one; whole on every rank"""
    gate_up: torch.Tensor
    """[experts, 2 size, hidden], each in the order of ops/gpu/gate_up.py"""
    down: torch.Tensor
    """[experts, hidden, size]"""
    router_bias: torch.Tensor | None = None
    """[experts]; biases that a model has not are None"""
    gate_up_bias: torch.Tensor | None = None
    """[experts, 2 size], in the order of gate_up"""
    down_bias: torch.Tensor | None = None
    """[experts, hidden], whole on every rank: the first one adds it"""

    @classmethod
    def empty(cls, shard: Shard, device: torch.device | str) -> ExpertWeights:
        """Room for the weights."""
        shapes = _shapes(shard)
        return cls(*(torch.empty(shape, dtype=torch.bfloat16, device=device) for shape in shapes))

    def place(self, name: str) -> Place | None:
        """Where a tensor of the layer goes, by its name within it; None: it is none of these."""
        count = len(self.gate_up)
        if name == f"{ROUTER}.weight":
            return Place.of(self.router[:count], None)
        if name == f"{SHARED_GATE}.weight":
            return Place.of(self.router[count:], None)
        if name == f"{ROUTER}.bias" and self.router_bias is not None:
            return Place.of(self.router_bias, None)
        found = _EXPERT.fullmatch(name)
        if found is None:
            return None
        expert, part = int(found[1]), PARTS.index(found[2])
        if found[3] == "bias":
            assert self.gate_up_bias is not None
            assert self.down_bias is not None
            if part == 2:
                return Place.of(self.down_bias[expert], None)
            return Place.gate_up(self.gate_up_bias[expert])[part]
        return Place.of(self.down[expert], 1) if part == 2 else Place.gate_up(self.gate_up[expert])[part]


def expert_bytes(shard: Shard) -> int:
    """Bytes of a layer's `ExpertWeights`."""
    return sum(2 * torch.Size(shape).numel() for shape in _shapes(shard))


def _shapes(shard: Shard) -> tuple[tuple[int, ...], ...]:
    experts, hidden = shard.config.form.experts, shard.config.hidden_size
    assert experts is not None
    count, size = experts.count, experts.size // shard.size
    weights = (experts.scores, hidden), (count, 2 * size, hidden), (count, hidden, size)
    return (*weights, (count,), (count, 2 * size), (count, hidden)) if experts.biased else weights
