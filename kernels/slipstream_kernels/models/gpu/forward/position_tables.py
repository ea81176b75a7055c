"""What layers look up by position: by which angles heads turn, and what queries are multiplied by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from slipstream_kernels.models.checkpoint.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class PositionTables:
    """By layer; layers of one kind share a tensor.

    rotary: float32 [positions, head_dim], see `Rope.table`. factors: float32 [positions]; None: of 1.
    """

    rotary: Sequence[torch.Tensor]
    factors: Sequence[torch.Tensor | None]

    @classmethod
    def of(cls, config: ModelConfig, positions: int, device: torch.device) -> PositionTables:
        """Those of a model, for its first so many positions."""
        layers = range(config.num_layers)
        rotary = {rope: torch.from_numpy(rope.table(positions, config.head_dim)).to(device) for rope in config.ropes}
        factors = {each: torch.from_numpy(each.table(positions)).to(device) for each in config.temperatures}
        temperatures = map(config.temperature_of, layers)
        return cls(
            [rotary[config.rope_of(layer)] for layer in layers],
            [None if each is None else factors[each] for each in temperatures],
        )

    @staticmethod
    def num_bytes(config: ModelConfig, positions: int) -> int:
        """Device memory taken."""
        return 4 * positions * (len(config.ropes) * config.head_dim + len(config.temperatures))
