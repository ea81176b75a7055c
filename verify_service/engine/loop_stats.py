"""Counters of the verify loop, for operators and tests."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from slipstream.bucket_counts import BucketCounts
from verify_service.core.adapters import AdapterState
from verify_service.core.expert_overlap import ExpertOverlap
from verify_service.core.grammar_seconds import GrammarSeconds
from verify_service.engine.output_processor import OutputProcessor
from verify_service.scheduler.kv_cache_manager import KVCacheManager
from verify_service.scheduler.pass_share import PassShare
from verify_service.scheduler.scheduler import Scheduler
from verify_service.speculation.forecast import Forecast


@dataclass(slots=True)
class LoopCounters:
    """What the loop itself counts."""

    steps: int = 0
    preemptions: int = 0
    prefix_hit_tokens: int = 0
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class LoopState:
    """A snapshot taken between two steps.

    `pages_free` are held by nobody, `pages_cached` by the prefix cache alone, so that they can be evicted; the
    rest of `pages_total` is held by running requests. The counters run from the start of the loop.
    """

    running: int
    queued: int
    pages_total: int
    pages_free: int
    pages_cached: int
    steps: int
    committed_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    preemptions: int
    prefix_hit_tokens: int
    draining: bool
    feature_boundaries: int = 0
    """At how many boundaries hidden states are captured."""
    feature_pages: int = 0
    """KV pages beside which some are kept."""
    prepared: int = 0
    """Pieces of work done ahead while there was no request."""
    tenants: int = 0
    """Tenants with requests."""
    displaced: int = 0
    """Queued requests that were refused for the sake of another tenant's share of the places."""
    cut_nodes: int = 0
    """Drafted nodes left out of passes for the sake of another tenant's share."""
    prompt_tokens: int = 0
    """Tokens of prompts that steps have computed."""
    oldest_arrival: float | None = None
    """When the oldest of the queued requests came, in time.monotonic(); None where none is queued."""
    verify_steps: int = 0
    """Steps, counted once for each request that they decided tokens of."""
    step_rows: BucketCounts | None = None
    """Rows of steps, which go on growing; None where none are told."""
    step_seconds: BucketCounts | None = None
    """Seconds that steps took the model, from the launch or the end of the step before; go on growing, too."""
    grammar_seconds: GrammarSeconds | None = None
    adapters: tuple[AdapterState, ...] = ()
    experts: ExpertOverlap | None = None
    """What steps of a mixture wake of its experts, which goes on; None of another model."""
    forecast: Forecast = field(default_factory=Forecast)
    """What steps were expected to yield when their trees were asked for."""


def snapshot(
    counters: LoopCounters,
    scheduler: Scheduler,
    memory: KVCacheManager,
    epilogue: OutputProcessor,
    passes: PassShare,
    *,
    draining: bool,
    prepared: int,
    adapters: tuple[AdapterState, ...] = (),
) -> LoopState:
    """The state at this moment. On the loop's thread."""
    return LoopState(
        running=scheduler.num_running,
        queued=scheduler.num_waiting,
        pages_total=memory.total,
        pages_free=memory.free,
        pages_cached=memory.cached,
        steps=counters.steps,
        committed_tokens=epilogue.committed_tokens,
        drafted_tokens=epilogue.drafted_tokens,
        accepted_tokens=epilogue.accepted_tokens,
        preemptions=counters.preemptions,
        prefix_hit_tokens=counters.prefix_hit_tokens,
        draining=draining,
        feature_boundaries=len(memory.features.boundaries),
        feature_pages=memory.features.pages,
        prepared=prepared,
        tenants=scheduler.num_tenants,
        displaced=scheduler.places.displaced,
        cut_nodes=passes.cut_nodes,
        prompt_tokens=counters.prompt_tokens,
        oldest_arrival=scheduler.oldest_arrival,
        verify_steps=epilogue.verify_steps,
        step_rows=epilogue.step_rows,
        step_seconds=epilogue.step_seconds,
        grammar_seconds=epilogue.grammar_seconds,
        adapters=adapters,
        experts=epilogue.experts,
        forecast=replace(epilogue.forecast),
    )
