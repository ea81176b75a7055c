"""The one place where a failing draft source is caught: it costs speed and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import ParamSpec, TypeVar

from slipstream.generation_types import FinishReason
from slipstream_kernels.draft_protocol.records import RoundCost
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.acceptance import VerifiedTree
from verify_service.core.draft_source import (
    Committed,
    DraftSource,
    EnqueuedDrafts,
    EnqueuedRequest,
    NoDrafts,
    RequestOpening,
    StateChunk,
    StateSpan,
)
from verify_service.core.request import RequestKey
from verify_service.core.step_result import DeviceStepResult
from verify_service.hidden_states.device_ring import RingSlice

_log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


class GuardedSource:
    """A draft source that never raises. Implements DraftSource.

    Where the source behind it does, the log says so and the answer is that of `NoDrafts`: no tree, no wait, no states.
    """

    __slots__ = ("_neutral", "_source")

    def __init__(self, source: DraftSource) -> None:
        self._source = source
        self._neutral = NoDrafts()

    def known(self, name: str) -> bool:
        return _ask(self._source.known, self._neutral.known, name)

    def default(self) -> str | None:
        return _ask(self._source.default, self._neutral.default)

    def begin(self, opening: RequestOpening) -> bool:
        return _ask(self._source.begin, self._neutral.begin, opening)

    def round_costs(self, proposer: str) -> Sequence[RoundCost]:
        return _ask(self._source.round_costs, self._neutral.round_costs, proposer)

    def most_levels(self, proposer: str) -> int:
        return _ask(self._source.most_levels, self._neutral.most_levels, proposer)

    def accepts_commits(self) -> bool:
        return _ask(self._source.accepts_commits, self._neutral.accepts_commits)

    def commit(self, commits: Sequence[Committed]) -> Collection[RequestKey]:
        return _ask(self._source.commit, self._neutral.commit, commits)

    def collect(self, wanted: Sequence[RequestKey]) -> list[TokenTree | None]:
        return _ask(self._source.collect, self._neutral.collect, wanted)

    def expects(self, keys: Sequence[RequestKey]) -> bool:
        return _ask(self._source.expects, self._neutral.expects, keys)

    def end(self, key: RequestKey, reason: FinishReason, verified: Sequence[VerifiedTree] = ()) -> None:
        _ask(self._source.end, self._neutral.end, key, reason, verified)

    def drafts_on_device(self) -> bool:
        return _ask(self._source.drafts_on_device, self._neutral.drafts_on_device)

    def drafts_behind(self, keys: Sequence[RequestKey]) -> bool:
        return _ask(self._source.drafts_behind, self._neutral.drafts_behind, keys)

    def enqueue_draft(self, rows: Sequence[EnqueuedRequest], outcome: DeviceStepResult) -> EnqueuedDrafts:
        return _ask(self._source.enqueue_draft, self._neutral.enqueue_draft, rows, outcome)

    def allow_device_trees(self, allowed: bool) -> None:
        _ask(self._source.allow_device_trees, self._neutral.allow_device_trees, allowed)

    def observe_wait(self, keys: Sequence[RequestKey], seconds: float) -> None:
        _ask(self._source.observe_wait, self._neutral.observe_wait, keys, seconds)

    def paused(self) -> bool:
        return _ask(self._source.paused, self._neutral.paused)

    def wanted_boundaries(self) -> tuple[int, ...]:
        return _ask(self._source.wanted_boundaries, self._neutral.wanted_boundaries)

    def reserve_ring(self, wanted: Sequence[StateSpan], captured: Sequence[int]) -> list[tuple[RingSlice, ...]]:
        return _ask(self._source.reserve_ring, self._neutral.reserve_ring, wanted, captured)

    def send_states(self, chunks: Sequence[StateChunk]) -> None:
        _ask(self._source.send_states, self._neutral.send_states, chunks)


def _ask(source: Callable[P, R], neutral: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    try:
        return source(*args, **kwargs)
    except Exception:  # noqa: BLE001 - a source that fails may cost speed and nothing else
        _log.exception("the draft source failed to answer %s", neutral.__name__)
        return neutral(*args, **kwargs)
