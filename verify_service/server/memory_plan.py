"""How much KV memory to take, decided once at start-up."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.rpc.errors import FailedPreconditionError
from slipstream_kernels.models.cpu.host_memory import available_bytes

MAX_AUTO_BYTES = 1 << 30
"""KV pages that are taken at most where the operator names no number."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """`page_bytes` for all pages, `scratch_bytes` for tree nodes, `feature_bytes` for states beside the pages.

    `adapter_bytes` are for as many LoRA adapters as may be loaded. All out of `available_bytes`; states and adapters
    take theirs as they are wanted.
    """

    num_pages: int
    page_bytes: int
    scratch_bytes: int
    feature_bytes: int
    available_bytes: int
    adapter_bytes: int = 0

    @property
    def needed_bytes(self) -> int:
        return self.page_bytes + self.scratch_bytes + self.feature_bytes + self.adapter_bytes

    def __str__(self) -> str:
        adapters = f", adapters up to {_mib(self.adapter_bytes)}" if self.adapter_bytes else ""
        return (
            f"{self.num_pages} KV pages of {_mib(self.page_bytes)} together, tree rows {_mib(self.scratch_bytes)}, "
            f"hidden states up to {_mib(self.feature_bytes)}{adapters}, {_mib(self.available_bytes)} available"
        )


def plan_memory(
    *,
    num_pages: int,
    page_size: int,
    kv_bytes_per_token: int,
    max_context: int,
    max_running: int,
    max_nodes: int,
    feature_bytes: int = 0,
    adapter_bytes: int = 0,
    available: int | None = None,
) -> MemoryPlan:
    """Settle the number of pages; 0 asks for a choice. Sizes are in bytes, `available` defaults to the machine's.

    The choice is full contexts for all running requests, at most MAX_AUTO_BYTES and half of what adapters leave,
    but at least one full context. FailedPreconditionError, with the figures, if the result does not fit.
    """
    room = available_bytes() if available is None else available
    page = page_size * kv_bytes_per_token
    if num_pages == 0:
        context = -(-max_context // page_size)
        left = max(0, room - adapter_bytes)
        num_pages = max(context, min(max_running * context, MAX_AUTO_BYTES // page, left // 2 // page))
    scratch = max_running * (max_nodes - 1) * kv_bytes_per_token
    plan = MemoryPlan(num_pages, num_pages * page, scratch, feature_bytes, room, adapter_bytes)
    if plan.needed_bytes > room:
        flags = ["--num-pages", "--max-running", "--max-nodes", *(["--max-loras"] if adapter_bytes else [])]
        raise FailedPreconditionError(f"out of memory: {plan}; lower {', '.join(flags)} or --feature-memory-mib")
    return plan


def check_feature_memory(feature_bytes: int, available: int | None = None) -> str:
    """What is set aside on the host of a GPU. FailedPreconditionError, with the figures, if it does not fit."""
    room = available_bytes() if available is None else available
    text = f"hidden states up to {_mib(feature_bytes)}, {_mib(room)} of the host's memory available"
    if feature_bytes > room:
        raise FailedPreconditionError(f"out of memory: {text}; lower --feature-memory-mib")
    return text


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
