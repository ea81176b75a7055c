"""FlashInfer's attention for the passes of a model that have no trees."""

from __future__ import annotations

import numpy as np
import torch

from slipstream_kernels.models.gpu.batch.buckets import Bucket
from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.batch.pass_plan import PassPlan
from slipstream_kernels.models.gpu.forward.flashinfer_attention import (
    DecodeAttention,
    FlashInferWorkspace,
    Int32,
    PagedShape,
    PrefillAttention,
)
from slipstream_kernels.models.gpu.forward.flashinfer_sizes import PlainRows, float_bytes
from slipstream_kernels.models.gpu.ranks.shard import Shard


class PlainAttention:
    """One object a bucket, made as it is first asked for. Raises FlashInferError."""

    def __init__(self, shard: Shard, limits: GpuLimits, page_table: torch.Tensor) -> None:
        """`limits` are resolved; `page_table` int32 [lines, pages] on the device."""
        self._shape = PagedShape(shard.heads, shard.kv_heads, shard.config.head_dim, limits.page_size, limits.num_pages)
        self._max_running = limits.max_running
        self._workspace = FlashInferWorkspace(page_table, limits.max_rows, _float_bytes(shard, limits))
        self._by_bucket: dict[Bucket, DecodeAttention | PrefillAttention] = {}

    @staticmethod
    def num_bytes(shard: Shard, limits: GpuLimits) -> int:
        """Device memory taken."""
        entries = limits.max_running * limits.context_pages
        return FlashInferWorkspace.num_bytes(entries, limits.max_rows, _float_bytes(shard, limits))

    def of(self, bucket: Bucket) -> DecodeAttention | PrefillAttention:
        """The attention of a bucket without trees."""
        if bucket not in self._by_bucket:
            rows = bucket.rows
            self._by_bucket[bucket] = (
                PrefillAttention(self._shape, rows, min(rows, self._max_running), self._workspace)
                if bucket.has_prefill
                else DecodeAttention(self._shape, rows, self._workspace)
            )
        return self._by_bucket[bucket]

    def plan(self, bucket: Bucket, plan: PassPlan) -> None:
        """Before a pass of the bucket. The plan is `in_order`; one without rows stands for as many as there can be."""
        if plan.rows:
            self.of(bucket).plan(*requests_of(plan))
        else:
            self.of(bucket).prepare()


def _float_bytes(shard: Shard, limits: GpuLimits) -> int:
    running = limits.max_running
    rows = PlainRows(running, limits.prefill_chunk + running, running)
    return float_bytes(rows, shard.heads, shard.kv_heads, shard.config.head_dim)


def requests_of(plan: PassPlan) -> tuple[Int32, Int32, Int32]:
    """(rows, line, positions its last row reads) of each request of a pass without trees, in the order of its rows."""
    spans = np.concatenate([plan.decodes, plan.prefills])
    lengths = spans[:, 3].copy()
    lengths[len(plan.decodes) :] += plan.prefills[:, 1]
    return spans[:, 1], spans[:, 2], lengths
