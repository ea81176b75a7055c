"""The draft link of the boundary benchmark's verify loop: the verify service's, with the times of its calls."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from benchmarks.local_engine.local_loop import EngineConfig
from benchmarks.local_engine.measured_model import MeasuredModel
from slipstream_kernels.draft_protocol.proposer_host import HostLimits
from slipstream_kernels.ipc.cuda_driver import is_mps_client
from slipstream_kernels.ipc.device_memory import CudaMemory
from slipstream_kernels.models.capture_layers import boundaries_of
from slipstream_kernels.token_tree import MAX_ROWS, TokenTree
from verify_service.config import GPU_SPIN_SECONDS, SPIN_SECONDS
from verify_service.core.draft_source import Committed
from verify_service.core.request import RequestKey
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.link_config import CUDA_IPC, LinkConfig
from verify_service.draft_link.link_state import LinkState
from verify_service.draft_link.records import LinkFacts
from verify_service.draft_link.transports.in_process import attach_host, load_host
from verify_service.hidden_states.device_ring_pool import DeviceRingPool

__all__ = [
    "GPU_SPIN_SECONDS",
    "SPIN_SECONDS",
    "DraftLink",
    "LinkState",
    "Span",
    "TimedLink",
    "attached_here",
    "timed_link",
]

Span = tuple[float, float]
"""Begin and end, time.perf_counter()."""
_STOP_SECONDS = 10.0


class TimedLink(DraftLink):
    """A link that keeps the times of its commits and collections."""

    def __init__(
        self, facts: LinkFacts, config: LinkConfig, rings: DeviceRingPool | None, device: str, max_step_rows: int
    ) -> None:
        """device: the model's. max_step_rows: of the largest step."""
        super().__init__(facts, config, rings=rings)
        self.device = device
        self.max_step_rows = max_step_rows
        self.commits: list[Span] = []
        self.collections: list[Span] = []

    def commit(self, commits: Sequence[Committed]) -> Collection[RequestKey]:
        begun = time.perf_counter()
        behind = super().commit(commits)
        self.commits.append((begun, time.perf_counter()))
        return behind

    def collect(self, wanted: Sequence[RequestKey]) -> list[TokenTree | None]:
        begun = time.perf_counter()
        trees = super().collect(wanted)
        self.collections.append((begun, time.perf_counter()))
        return trees


def timed_link(
    model: MeasuredModel,
    engine: EngineConfig,
    transports: tuple[str, ...],
    *,
    deadline: float,
    spin: float,
    tokenizer: str,
) -> TimedLink:
    """A link to a model that the verify loop runs; steps wait for trees until the deadline, `spin` of it awake.

    tokenizer: the fingerprint of the model's.
    """
    config = model.config
    facts = LinkFacts(
        model_fingerprint="model",
        tokenizer_fingerprint=tokenizer,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        max_context=config.max_context,
        max_nodes=MAX_ROWS,
        feature_boundaries=tuple(boundaries_of(config.num_layers)),
        most_boundaries=model.limits.boundaries,
    )
    rings = None
    rows = engine.prefill_chunk + engine.max_running + engine.step_nodes
    device = model.kv.keys.device
    if CUDA_IPC in transports:
        index = device.index or 0
        rings = DeviceRingPool(
            CudaMemory(index), max_step_rows=rows, hidden_size=config.hidden_size, mps=is_mps_client(index)
        )
    return TimedLink(facts, LinkConfig(deadline=deadline, transports=transports, spin=spin), rings, str(device), rows)


@contextmanager
def attached_here(link: DraftLink, spec: str, device: str) -> Iterator[None]:
    """A proposer of this process is attached to a link, which is closed at the end."""
    host = load_host((spec,), HostLimits(device=device))
    try:
        if isinstance(link, TimedLink):
            attach_host(link, host, device=link.device, max_step_rows=link.max_step_rows)
        else:
            attach_host(link, host)
        yield
    finally:
        link.close()
        host.stop(_STOP_SECONDS)
