"""How much of a device's memory a draft takes, known before it takes any."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream_kernels.models.gpu.batch.request_tables import RequestTables
from slipstream_kernels.models.gpu.draft.networks.draft_forward import DraftForward, DraftSizes
from slipstream_kernels.models.gpu.draft.round.limits import PAGE_SIZE, DraftLimits
from slipstream_kernels.models.gpu.draft.round.round_buffers import RoundBuffers
from slipstream_kernels.models.gpu.memory_plan import OutOfDeviceMemoryError

_GRAPH_BYTES = 4 << 20
"""What a captured graph takes of the device's memory, at most."""
_CONTEXT_BYTES = 512 << 20
"""Compiled kernels and what the allocator rounds up."""


@dataclass(frozen=True, slots=True)
class DraftMemoryPlan:
    """Bytes on the device; `available` is what all of it together may take."""

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

    @property
    def needed(self) -> int:
        sizes = self.weights, self.pages, self.scratch, self.partials, self.logits, self.activations, self.tables
        return sum(sizes) + self.reserve

    def __str__(self) -> str:
        return (
            f"weights {_gib(self.weights)}, KV pages {_gib(self.pages)}, tree rows {_gib(self.scratch)}, "
            f"attention {_gib(self.partials)}, logits {_gib(self.logits)}, activations {_gib(self.activations)}, "
            f"tables {_gib(self.tables)}, graphs and kernels {_gib(self.reserve)}: "
            f"{_gib(self.needed)} of {_gib(self.available)} available"
        )


def plan_draft_memory(
    forward: DraftForward, limits: DraftLimits, sizes: DraftSizes, chain_rows: int, *, graphs: int, available: int
) -> DraftMemoryPlan:
    """Raises OutOfDeviceMemoryError. `graphs` is how many will be captured, 0 on the CPU; `available` is in bytes."""
    shape = forward.shape
    buffers = RoundBuffers(shape, limits, sizes, chain_rows, "meta").nbytes
    rotary = 4 * rotary_positions(limits) * shape.head_dim
    plan = DraftMemoryPlan(
        weights=forward.nbytes,
        pages=limits.num_pages * PAGE_SIZE * shape.slot_bytes,
        scratch=scratch_slots(limits, sizes) * shape.slot_bytes,
        partials=buffers["partials"],
        logits=buffers["logits"],
        activations=buffers["rows"] + forward.activation_bytes(sizes),
        tables=RequestTables(limits.lines, shape.entries, "meta").nbytes + rotary,
        reserve=_CONTEXT_BYTES + graphs * _GRAPH_BYTES if graphs else 0,
        available=available,
    )
    if plan.needed > available:
        raise OutOfDeviceMemoryError(
            f"out of device memory: {plan}; lower max_tokens, max_context, max_sessions, top_k or max_depth"
        )
    return plan


def scratch_slots(limits: DraftLimits, sizes: DraftSizes) -> int:
    """Slots of the nodes that a round computes."""
    return (limits.max_depth - 1) * sizes.node_rows


def rotary_positions(limits: DraftLimits) -> int:
    """Positions that rows may have."""
    return limits.max_context + limits.max_depth + 1


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
