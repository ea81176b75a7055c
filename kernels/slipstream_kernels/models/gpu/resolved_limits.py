"""What a model is prepared for, once its device and the ranks that share it are known."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from slipstream_kernels.models.config import ModelConfig
from slipstream_kernels.models.gpu.buckets import buckets_of
from slipstream_kernels.models.gpu.flashinfer_attention import FLASHINFER
from slipstream_kernels.models.gpu.graphs import LATE_GRAPHS
from slipstream_kernels.models.gpu.limits import GpuLimits
from slipstream_kernels.models.gpu.memory import GpuMemoryPlan, available_bytes, plan_memory
from slipstream_kernels.models.gpu.rank_group import RankGroup
from slipstream_kernels.models.gpu.shard import Shard


def shard_of(config: ModelConfig, group: RankGroup | None) -> Shard:
    """What of a model this rank holds."""
    return Shard(config) if group is None else Shard(config, group.rank, group.size)


def resolved_limits(
    shard: Shard,
    limits: GpuLimits,
    device: torch.device,
    mode: str,
    attention: str,
    group: RankGroup | None,
    *,
    held: int,
    capture: bool,
) -> tuple[GpuLimits, GpuMemoryPlan]:
    """Limits and memory with everything settled; `held` bytes of what is needed are taken already.

    Raises ValueError for limits that do not fit the model, OutOfDeviceMemoryError.
    """
    longest = shard.config.max_context
    if limits.max_context > longest:
        raise ValueError(f"max_context is {limits.max_context}, the model's is {longest}")
    limits = replace(limits, max_context=limits.max_context or longest)
    cuda = device.type == "cuda"
    plain = attention == FLASHINFER
    graphs = len(buckets_of(shard, limits, plain=plain).all()) if capture and cuda else 0
    if limits.boundaries and graphs:
        graphs += LATE_GRAPHS  # of passes that keep states
    available = available_bytes(device, limits.memory_utilization) + held
    plan = partial(plan_memory, shard, mode=mode, plain=plain, graphs=graphs, available=available, on_host=not cuda)
    memory = plan(limits)
    if group is not None:
        # All ranks share one page table: the one with the least room decides.
        pages = torch.empty(group.size, 1, dtype=torch.int32, device=device)
        group.all_gather(pages, torch.tensor([memory.num_pages], dtype=torch.int32, device=device))
        limits = replace(limits, num_pages=int(pages.min()))
        memory = plan(limits)
    return replace(limits, num_pages=memory.num_pages), memory
