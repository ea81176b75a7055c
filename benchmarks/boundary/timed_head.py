"""The EAGLE-3 head of a folder as the boundary benchmark's proposer, with the times of its rounds on the device.

    --proposers oracle=benchmarks.boundary.timed_head:create:REPORT:DIR:num_steps=5:topk=8:num_draft_tokens=16

A round's time begins when what the pass has decided is there, and ends when the trees are; it is taken by two events on
streams of their own, which wait for nothing else.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.boundary.plan import PROPOSER, DraftReport
from draft_service.proposers.base import (
    DraftFuture,
    DraftRequest,
    FollowRequest,
    Opening,
    Proposer,
    ProposerOptions,
    Target,
)
from draft_service.proposers.registry import ProposerSpec, find_factory
from slipstream_kernels.draft_protocol.proposer_host import DevicePassResult, EnqueuedRound
from slipstream_kernels.token_tree import TokenTree

if TYPE_CHECKING:
    import torch

FACTORY = "benchmarks.boundary.timed_head:create"
HEAD = "eagle3"
_KEPT = 4096
"""Rounds whose times are kept: those of one setting."""


def spec_of(head: str, report: Path, *, rows: int, depth: int, width: int = 8) -> str:
    """The proposer's specification. Trees have `rows` rows at most, root included, and `depth` levels."""
    return f"{PROPOSER}={FACTORY}:{report}:{head}:num_steps={depth}:topk={width}:num_draft_tokens={rows}"


class _Marked(NamedTuple):
    """Begin and end of the call that queued a round, and its events on the device."""

    begun: float
    ended: float
    start: torch.cuda.Event
    end: torch.cuda.Event


class TimedHead(Proposer):
    """See the module. Does what `inner` does."""

    def __init__(self, name: str, inner: Proposer, report: Path) -> None:
        self.name = name
        self._inner = inner
        self._report = report
        self._rounds: deque[_Marked] = deque(maxlen=_KEPT)
        self._streams: tuple[torch.cuda.Stream, torch.cuda.Stream] | None = None
        self._rows = self._on_device = 0
        self._take_facts()

    def bind(self, target: Target) -> None:
        self._inner.bind(target)
        self._take_facts()

    def open(self, session: int, opening: Opening) -> None:
        self._inner.open(session, opening)

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        self._inner.commit(session, token_ids)

    def take_features(self, session: int, first_position: int, features: torch.Tensor) -> None:
        self._rows += len(features)
        self._on_device += len(features) if features.is_cuda else 0
        self._inner.take_features(session, first_position, features)

    def close(self, session: int) -> None:
        self._inner.close(session)

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        return self._inner.propose(requests)

    def begin(self, requests: Sequence[DraftRequest]) -> DraftFuture:
        return self._inner.begin(requests)

    def follow(self, requests: Sequence[FollowRequest], outcome: DevicePassResult) -> EnqueuedRound:
        begun = time.perf_counter()
        enqueued = self._inner.follow(requests, outcome)
        ended = time.perf_counter()
        if outcome.results.is_cuda and enqueued.trees:
            self._mark(begun, ended, outcome, enqueued)
        return enqueued

    def advance(self) -> bool:
        return self._inner.advance()

    def shut_down(self) -> None:
        """Write the report."""
        self._inner.shut_down()
        for each in self._rounds:
            each.end.synchronize()
        rounds = [(each.begun, each.ended, each.start.elapsed_time(each.end) / 1e3) for each in self._rounds]
        DraftReport(rounds, self._rows, self._on_device, 0).write(self._report)

    def _mark(self, begun: float, ended: float, outcome: DevicePassResult, enqueued: EnqueuedRound) -> None:
        import torch

        if self._streams is None:
            device = outcome.results.device
            self._streams = torch.cuda.Stream(device), torch.cuda.Stream(device)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before, behind = self._streams
        if outcome.ready is not None:
            before.wait_event(outcome.ready)
        start.record(before)
        with torch.cuda.stream(behind):
            for trees in {id(tree.trees): tree.trees for tree in enqueued.trees.values()}.values():
                trees.queue()
            end.record(behind)
        self._rounds.append(_Marked(begun, ended, start, end))

    def _take_facts(self) -> None:
        inner = self._inner
        self.max_nodes, self.max_depth = inner.max_nodes, inner.max_depth
        self.feature_boundaries, self.follows = inner.feature_boundaries, inner.follows
        self.shares_thread, self.state_device = inner.shares_thread, inner.state_device
        self.tokenizer_fingerprint, self.vocab_size = inner.tokenizer_fingerprint, inner.vocab_size


def create(options: ProposerOptions) -> TimedHead:
    """Factory. The argument is `REPORT:DIR[:OPTIONS]`: of the report's file, and of the head as on the command line."""
    report, head = options.argument.split(":", 1)
    spec = ProposerSpec.parse(f"{HEAD}:{head}")
    inner = find_factory(spec)(replace(options, name=spec.name, argument=spec.argument))
    return TimedHead(options.name, inner, Path(report))
