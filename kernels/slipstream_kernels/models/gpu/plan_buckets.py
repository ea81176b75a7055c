"""Which buckets a model has, and which of them a pass takes."""

from __future__ import annotations

from slipstream_kernels.models.gpu.buckets import Bucket, Buckets
from slipstream_kernels.models.gpu.device_plan import fits_tiles, tiled_rows
from slipstream_kernels.models.gpu.flashinfer_attention import FLASHINFER
from slipstream_kernels.models.gpu.limits import GpuLimits
from slipstream_kernels.models.gpu.pass_plan import PassPlan
from slipstream_kernels.models.gpu.shard import Shard


def buckets_of(shard: Shard, limits: GpuLimits, attention: str) -> Buckets:
    """A model's buckets: a library's attention of passes without trees knows no tiles."""
    if attention == FLASHINFER:
        return Buckets(limits, plain_prefill=True)
    return Buckets(limits, tiled_rows=tiled_rows(shard.kv_heads))


def bucket_of(buckets: Buckets, plan: PassPlan, shard: Shard) -> Bucket:
    """The bucket of a plan in order where no states are kept. Raises ValueError for a plan that fits none."""
    return buckets.find(
        plan.rows,
        len(plan.logit_rows),
        has_trees=plan.has_trees,
        has_prefill=len(plan.prefills) > 0,
        fits_tiles=fits_tiles(plan, shard.kv_heads),
    )
