"""Where a model on a GPU keeps keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.ranks.shard import Shard
from slipstream_kernels.models.kv_form import FLOAT, KVForm
from slipstream_kernels.ops.kv_cache.kv_codes import Fp8Rows, KVRows


@dataclass(frozen=True, slots=True)
class KVStore:
    """Keys and values [layers, kv_heads, slots, head_dim]; page p holds slots p * page_size onwards.

    They are bfloat16, or codes beside float32 scales [layers, kv_heads, slots] where `form` says so.
    """

    keys: torch.Tensor
    values: torch.Tensor
    page_size: int
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None
    form: KVForm = FLOAT

    @classmethod
    def empty(cls, shard: Shard, limits: GpuLimits, device: torch.device) -> KVStore:
        """A store of zeros, of the pages and scratch slots of `limits`, which are resolved."""
        config, slots = shard.config, limits.num_pages * limits.page_size + limits.scratch_slots
        shape, form = (config.num_layers, shard.kv_heads, slots, config.head_dim), limits.kv
        dtype = torch.uint8 if form.fp8 else torch.bfloat16
        keys, values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        if not form.fp8:
            return cls(keys, values, limits.page_size)
        key_scales, value_scales = (torch.zeros(shape[:3], dtype=torch.float32, device=device) for _ in range(2))
        return cls(keys, values, limits.page_size, key_scales, value_scales, form)

    def of_layer(self, layer: int) -> tuple[KVRows, KVRows]:
        """Keys and values of a layer, as ops take them."""
        if self.key_scales is None or self.value_scales is None:
            return self.keys[layer], self.values[layer]
        key, value = self.form.scales[layer] if self.form.scales else (0.0, 0.0)
        return (
            Fp8Rows(self.keys[layer], self.key_scales[layer], key),
            Fp8Rows(self.values[layer], self.value_scales[layer], value),
        )

    def of_all(self) -> tuple[KVRows, KVRows]:
        """Keys and values of all layers, to be copied from slot to slot."""
        if self.key_scales is None or self.value_scales is None:
            return self.keys, self.values
        return Fp8Rows(self.keys, self.key_scales), Fp8Rows(self.values, self.value_scales)
