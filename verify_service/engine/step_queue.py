"""Steps under way: launched, not decided yet, and how far the loop may run ahead of them."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.core.step_result import StepHandle, VerifyResult
from verify_service.engine.launch_clock import LaunchClock
from verify_service.model_runner.base import ModelRunner
from verify_service.scheduler.tree_share import several_tenants
from verify_service.speculation.controller import SpeculationController


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A step under way; `launched_at` is time.perf_counter() in seconds."""

    items: Sequence[ScheduledRequest]
    launched: StepHandle
    launched_at: float

    @property
    def constrained(self) -> bool:
        """Whether a grammar may have the last word on what it decides, which the host alone knows."""
        return any(item.state.grammar is not None for item in self.items)

    @property
    def drafted(self) -> bool:
        """Whether any of its rows is a tree's: then only its decision tells how far a request has come.

        Of requests that are over nobody asks that.
        """
        return any(item.drafted and not item.state.finished for item in self.items)


class StepQueue:
    """Keeps an engine supplied. Steps leave in the order they came."""

    def __init__(self, engine: ModelRunner[Any], drafting: SpeculationController) -> None:
        self._engine = engine
        self._speculation = drafting
        self._steps: deque[Step] = deque()
        self._decided_at = 0.0
        self._clock = LaunchClock()
        self._ahead: Sequence[ScheduledRequest] = ()
        """Items of a step that was launched with promised trees ahead of the decision they are drafted behind."""

    def __bool__(self) -> bool:
        """Whether any step is under way."""
        return bool(self._steps)

    @property
    def can_launch(self) -> bool:
        """Whether a step may be launched now.

        Beyond steps under way one may, to the engine's lookahead, as long as only the values of tokens are unknown,
        not their number, and no request is about to get a tree that it would then miss.
        """
        return len(self._steps) <= self._engine.lookahead and not any(
            step.drafted or step.constrained or self._speculation.expects_trees(step.items) for step in self._steps
        )

    @property
    def can_launch_unresolved(self) -> bool:
        """Whether a step may be launched whose requests' lengths the engine finds, by how the one step under way ends.

        Where `can_launch` is False, as that step has trees, and no request is about to get one.
        """
        return self._may_look_past and not self._speculation.expects_trees(self._steps[0].items)

    @property
    def can_launch_ahead(self) -> bool:
        """Whether such a step may be launched with the trees that are promised behind the one under way.

        Not where tenants share a step: the host cuts trees to what each of them may have.
        """
        if not (self._may_look_past and self._engine.takes_unresolved_trees):
            return False
        return self._speculation.can_launch_ahead and not several_tenants(self._steps[0].items)

    @property
    def _may_look_past(self) -> bool:
        """Not where all requests are likely over by then: the one that comes next would wait for a step of nobody."""
        steps = self._steps
        if not len(steps) == 1 <= self._engine.lookahead or steps[0].constrained:
            return False
        return not all(item.is_likely_last for item in steps[0].items)

    @property
    def seconds_ahead(self) -> float:
        """For how many seconds yet a step that `can_launch_ahead` is better not launched, as requests may come."""
        left = self._clock.left if len(self._steps) == 1 else 0.0
        return left if left > 0 and self.can_launch_ahead else 0.0

    @property
    def under_way(self) -> Mapping[RequestState, ScheduledRequest]:
        """Rows of requests in the newest step under way."""
        return {item.state: item for item in self._steps[-1].items} if self._steps else {}

    def launch(self, items: Sequence[ScheduledRequest], *, ahead: bool = False) -> None:
        """Start a step and move its requests on. If the engine fails, they stay where they were.

        `read_trees` and `enqueue_drafts` are to follow; ahead: once the step before it is decided, see `take_ahead`.
        """
        begun, alone = time.perf_counter(), not self._steps
        launched = self._engine.launch(items)
        for item in items:
            item.state.kv.num_computed_tokens = item.base
            item.state.num_output_placeholders += item.decides
            item.state.max_inflight_drafts += item.depth
        self._steps.append(Step(items, launched, begun))
        self._clock.launched(begun, time.perf_counter() - begun, alone=alone)
        self._ahead = items if ahead else ()

    def take_ahead(self) -> Sequence[ScheduledRequest]:
        """Return, once, the items of a step launched `ahead`, now that the one before it is decided; () for none."""
        ahead, self._ahead = self._ahead, ()
        return ahead

    def read_trees(self) -> None:
        """Have the host know the newest step's trees that only the device knew; the step counts as begun from then."""
        if self._speculation.read(self._steps[-1].items):
            self._steps[-1] = replace(self._steps[-1], launched_at=time.perf_counter())

    def enqueue_drafts(self) -> None:
        """Have drafters on the device draft behind the newest step."""
        launched = self._steps[-1].launched
        if self._speculation.drafts_on_device and (outcome := self._engine.outcome(launched)) is not None:
            for read in self._speculation.enqueue_drafts(launched.deciding, outcome):
                self._engine.start_after(read)

    def begin_masks(self) -> None:
        """Have masks of the newest step computed; other threads that want the interpreter make that take longer."""
        self._engine.begin_masks(self._steps[-1].launched)

    def next(self) -> Step:
        """Take out the oldest step; its requests count on it no longer."""
        step = self._steps.popleft()
        for item in step.items:
            item.state.num_output_placeholders -= item.decides
            item.state.max_inflight_drafts -= item.depth
        return step

    def drop(self) -> None:
        """Wait until the engine rests; what it still decides is for nobody."""
        while self:
            with contextlib.suppress(Exception):
                self.decide(self.next())

    def decide(self, step: Step) -> tuple[list[VerifyResult], float]:
        """Wait for a step's tokens; also the seconds it took the engine, less those it spent on the step before.

        By the engine's clock where it has one. What the step behind it has chosen is settled with that, and what it has
        waited for trees.
        """
        late = step.launched.over
        decisions = self._engine.decide(step.launched)
        begun = max(step.launched_at, self._decided_at)
        self._decided_at = time.perf_counter()
        self._clock.decided(self._decided_at, late=late)
        seconds = self._decided_at - begun
        times = self._engine.times(step.launched)
        if times is not None:
            seconds = times.busy
        self._speculation.settle_wait(None if times is None else times.idle, len(step.items))
        self._resolve(decisions)
        return decisions, seconds

    def _resolve(self, decisions: Sequence[VerifyResult]) -> None:
        paths = {decision.item.state: decision.path for decision in decisions} if self._steps else {}
        for step in self._steps:
            for item in step.items:
                path = paths.get(item.state) if item.unresolved else None
                if path is not None:
                    item.resolve(path)
                    for ring_slice in step.launched.spans(item):
                        ring_slice.resolve(len(path.nodes))
