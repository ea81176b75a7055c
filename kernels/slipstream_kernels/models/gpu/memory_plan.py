"""How the device's memory is shared out, and the limits that follow from it, decided once at start-up."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from slipstream_kernels.models.checkpoint.model_config import CheckpointError
from slipstream_kernels.models.gpu.batch.buckets import buckets_of
from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.batch.request_tables import RequestTables
from slipstream_kernels.models.gpu.forward.adapters import GpuAdapters
from slipstream_kernels.models.gpu.forward.flashinfer_attention import FLASHINFER
from slipstream_kernels.models.gpu.forward.masked_sampling import MaskRoom
from slipstream_kernels.models.gpu.forward.plain_attention import PlainAttention
from slipstream_kernels.models.gpu.forward.position_tables import PositionTables
from slipstream_kernels.models.gpu.forward.row_scores import RowScorer
from slipstream_kernels.models.gpu.forward.weights import weight_bytes
from slipstream_kernels.models.gpu.graph.graph_runner import LATE_GRAPHS
from slipstream_kernels.models.gpu.graph.hidden_state_copies import HiddenStateSender
from slipstream_kernels.models.gpu.graph.pass_buffers import BufferPool
from slipstream_kernels.models.gpu.ranks.rank_group import RankGroup
from slipstream_kernels.models.gpu.ranks.shard import Shard
from slipstream_kernels.models.kv_form import FLOAT, KVForm
from slipstream_kernels.ops.attention_form import HEAD_DIMS

_GRAPH_BYTES = 8 << 20
"""What a captured graph takes of the device's memory, at most."""
_CONTEXT_BYTES = 1 << 30
"""Compiled kernels, libraries' workspaces and what the allocator rounds up."""
_MAX_HOST_PAGES_BYTES = 1 << 28
"""KV pages that are taken at most in the host's memory where nobody names a number: that device serves tests."""
_CONTEXT_STEP = 1024
"""Tokens of which a context that is said to fit is a multiple."""
_MEMINFO = Path("/proc/meminfo")


class OutOfDeviceMemoryError(ValueError):
    """What was asked for does not fit; the message has the figures and says what to lower."""


@dataclass(frozen=True, slots=True)
class GpuMemoryPlan:
    """Bytes of one rank on its device; `available` is what all of it together may take."""

    num_pages: int
    weights: int
    pages: int
    scratch: int
    partials: int
    logits: int
    activations: int
    tables: int
    reserve: int
    """CUDA graphs and compiled kernels"""
    available: int
    adapters: int = 0

    @property
    def needed(self) -> int:
        return self.fixed + self.pages

    @property
    def fixed(self) -> int:
        """All but the pages."""
        parts = self.weights, self.scratch, self.partials, self.logits, self.activations, self.tables, self.reserve
        return sum(parts) + self.adapters

    def __str__(self) -> str:
        return (
            f"weights {_gib(self.weights)}, {self.num_pages} KV pages of {_gib(self.pages)} together, "
            f"tree rows {_gib(self.scratch)}, attention {_gib(self.partials)}, logits {_gib(self.logits)}, "
            f"activations {_gib(self.activations)}, tables {_gib(self.tables)}, adapters {_gib(self.adapters)}, "
            f"graphs and kernels {_gib(self.reserve)}: {_gib(self.needed)} of {_gib(self.available)} available"
        )


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
    head_dim, longest = shard.config.head_dim, shard.config.max_context
    if device.type == "cuda" and head_dim not in HEAD_DIMS:
        raise CheckpointError(f"head_dim is {head_dim}; a GPU takes {', '.join(map(str, HEAD_DIMS))}")
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


def plan_memory(
    shard: Shard,
    limits: GpuLimits,
    *,
    mode: str,
    plain: bool = False,
    graphs: int,
    available: int,
    on_host: bool,
) -> GpuMemoryPlan:
    """Settle the number of pages; `limits.num_pages` 0 asks for as many as fit, but one full context at least.

    `plain` adds what `PlainAttention` takes, `graphs` is how many will be captured, `available` is in bytes. Raises
    OutOfDeviceMemoryError, which names the longest context that fits where a shorter one does.
    """
    at = partial(_plan_at, shard, mode=mode, plain=plain, graphs=graphs, available=available, on_host=on_host)
    plan = at(limits)
    if plan.weights > available:
        raise OutOfDeviceMemoryError(
            f"out of device memory: {plan}; the weights alone do not fit: share them among more GPUs than "
            f"{shard.size} (--tensor-parallel-size), or serve them in fewer bits"
        )
    if plan.needed > available:
        fits = bisect_left(
            range(limits.max_context // _CONTEXT_STEP),
            True,
            key=lambda steps: at(replace(limits, max_context=(steps + 1) * _CONTEXT_STEP)).needed > available,
        )
        hint = f" (max_context {fits * _CONTEXT_STEP} fits)" if fits else ""
        raise OutOfDeviceMemoryError(
            f"out of device memory: {plan}; lower num_pages, max_context{hint}, max_running, step_nodes, prefill_chunk "
            f"or max_loras, or raise memory_utilization"
        )
    most_pages = _most_pages(shard, limits)
    if plan.num_pages > most_pages:
        raise OutOfDeviceMemoryError(f"num_pages is {plan.num_pages}, at most {most_pages} can be addressed")
    return plan


def _plan_at(
    shard: Shard, limits: GpuLimits, *, mode: str, plain: bool, graphs: int, available: int, on_host: bool
) -> GpuMemoryPlan:
    """As `plan_memory`, whether it fits or not."""
    per_token = kv_bytes_per_token(shard, limits.kv)
    buffers = BufferPool(shard, limits, "meta", library=mode == "fast").nbytes
    # As `GpuModel` keeps them: beside the last pass's logits those of the one before it.
    kept_logits = 4 * limits.max_decode_rows * shard.config.vocab_size
    plan = GpuMemoryPlan(
        num_pages=limits.num_pages,
        weights=weight_bytes(shard),
        pages=0,
        scratch=limits.scratch_slots * per_token,
        partials=buffers["partials"] + (PlainAttention.num_bytes(shard, limits) if plain else 0),
        logits=buffers["logits"]
        + kept_logits
        + RowScorer.num_bytes(shard, limits)
        + MaskRoom.num_bytes(limits, shard.config.vocab_size),
        activations=buffers["activations"] + HiddenStateSender.num_bytes(limits, shard.config.hidden_size),
        tables=RequestTables(limits, shard.config.vocab_size, "meta").nbytes
        + PositionTables.num_bytes(shard.config, limits.max_context),
        reserve=0 if on_host else _CONTEXT_BYTES + graphs * _GRAPH_BYTES,
        available=available,
        adapters=GpuAdapters(shard, limits, "meta").nbytes if limits.max_adapters else 0,
    )
    page = per_token * limits.page_size
    num_pages, most_pages = limits.num_pages, _most_pages(shard, limits)
    if num_pages == 0:
        room = max(0, available - plan.fixed)
        most = min(room, _MAX_HOST_PAGES_BYTES) if on_host else room
        num_pages = min(max(most // page, limits.context_pages), most_pages)
    return replace(plan, num_pages=num_pages, pages=num_pages * page)


def _most_pages(shard: Shard, limits: GpuLimits) -> int:
    """Pages with which the stride between heads of a layer's keys, in numbers, is an int32, as kernels take it."""
    slots = (2**31 - 1) // shard.config.head_dim
    return (slots - limits.scratch_slots) // limits.page_size


def kv_bytes_per_token(shard: Shard, form: KVForm = FLOAT) -> int:
    """Bytes of keys and values of one slot on one rank."""
    return 2 * shard.config.num_layers * shard.kv_heads * form.row_bytes(shard.config.head_dim, 2)


def available_bytes(device: torch.device, utilization: float) -> int:
    """What this process may still take of a device so that no more than a share of its memory is in use."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return max(0, free - int((1 - utilization) * total))
    fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    return int(int(fields["MemAvailable"].split()[0]) * 1024 * utilization)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
