"""Counters of the verify loop, for operators and tests."""

from __future__ import annotations

from dataclasses import dataclass


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
