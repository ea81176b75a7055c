"""Where a model on a GPU keeps keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.ranks.shard import Shard


@dataclass(frozen=True, slots=True)
class KVStore:
    """bfloat16 keys and values [layers, kv_heads, slots, head_dim]; page p holds slots p * page_size onwards."""

    keys: torch.Tensor
    values: torch.Tensor
    page_size: int

    @classmethod
    def empty(cls, shard: Shard, limits: GpuLimits, device: torch.device) -> KVStore:
        """A store of zeros, of the pages and scratch slots of `limits`, which are resolved."""
        config, slots = shard.config, limits.num_pages * limits.page_size + limits.scratch_slots
        shape = (config.num_layers, shard.kv_heads, slots, config.head_dim)
        keys, values = (torch.zeros(shape, dtype=torch.bfloat16, device=device) for _ in range(2))
        return cls(keys, values, limits.page_size)
