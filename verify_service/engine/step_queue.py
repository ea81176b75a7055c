"""Steps under way: launched, not decided yet, and how far the loop may run ahead of them."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.core.step_result import StepHandle, VerifyResult
from verify_service.engine.launch_deadline import LaunchDeadline
from verify_service.model_runner.base import ModelRunner
from verify_service.speculation.controller import SpeculationController

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A step under way; `launched_at` is time.perf_counter() in seconds."""

    items: Sequence[ScheduledRequest]
    launched: StepHandle
    launched_at: float

    @property
    def drafted(self) -> bool:
        """Whether any of its rows is a tree's: then only its decision tells how far a request has come."""
        return any(item.tree is not None or item.reserved is not None for item in self.items)


def _attempt(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:  # noqa: BLE001 - the step is under way already
        _log.exception("what was to be done behind the launch of a step failed")


class StepQueue:
    """Keeps an engine supplied. Steps leave in the order they came."""

    def __init__(self, engine: ModelRunner[Any], drafting: SpeculationController) -> None:
        self._engine = engine
        self._speculation = drafting
        self._steps: deque[Step] = deque()
        self._decided_at = 0.0
        self._times = LaunchDeadline()

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
            step.drafted or self._speculation.expects_trees(step.items) for step in self._steps
        )

    @property
    def can_launch_ahead(self) -> bool:
        """Whether a step may be launched whose trees the engine chooses, by how the one step under way ends.

        Where `can_launch` is False, as steps have trees or expect some, and no drafter is waited for.
        """
        steps = self._steps
        return len(steps) == 1 and self._engine.chooses and self._speculation.can_launch_ahead(steps[0].items)

    @property
    def under_way(self) -> Mapping[RequestState, ScheduledRequest]:
        """Rows of requests in the newest step under way."""
        return {item.state: item for item in self._steps[-1].items} if self._steps else {}

    def launch_slack(self) -> float | None:
        """How long the launch of the next step may wait for the sake of its trees; None where that is not known."""
        latest = self._times.latest_start(max(self._steps[0].launched_at, self._decided_at))
        return None if latest is None else latest - time.perf_counter()

    def launch(
        self,
        items: Sequence[ScheduledRequest],
        prepared_from: float | None = None,
        meanwhile: Callable[[], None] | None = None,
        afterwards: Callable[[], None] | None = None,
    ) -> None:
        """Start a step and move its requests on. If the engine fails, they stay where they were.

        Where it begins with trees that only the device knows yet, returns once the host knows them, from when on it
        counts as begun. `meanwhile` is called before they are waited for, `afterwards` before drafting behind the step
        is enqueued.
        `prepared_from` is when its trees had to be there, or were, time.perf_counter(), where it has prepared ones.
        """
        begun = time.perf_counter()
        launched = self._engine.launch(items)
        if prepared_from is None:
            self._times.observe_launch(time.perf_counter() - begun)
        else:
            self._times.observe_whole_launch(time.perf_counter() - prepared_from)
        for item in items:
            item.state.num_computed_tokens = item.base
            item.state.num_output_placeholders += item.decides
            item.state.max_inflight_drafts += item.max_accepted
        late = self._speculation.read(items, meanwhile)
        known = time.perf_counter()
        self._steps.append(Step(items, launched, known if late else begun))
        if self._engine.lookahead and len(self._steps) == 1:
            self._speculation.observe_idle(known - self._decided_at)
        if afterwards is not None:
            _attempt(afterwards)
        if self._speculation.drafts_on_device and (outcome := self._engine.outcome(launched)) is not None:
            for read in self._speculation.enqueue_drafts(launched.deciding, outcome):
                self._engine.start_after(read)

    def next(self) -> Step:
        """Take out the oldest step; its requests count on it no longer."""
        step = self._steps.popleft()
        for item in step.items:
            item.state.num_output_placeholders -= item.decides
            item.state.max_inflight_drafts -= item.max_accepted
        return step

    def drop(self) -> None:
        """Wait until the engine rests; what it still decides is for nobody."""
        while self:
            with contextlib.suppress(Exception):
                self.decide(self.next())

    def decide(self, step: Step) -> tuple[list[VerifyResult], float]:
        """Wait for a step's tokens; also the seconds it took the engine, less those it spent on the step before.

        What the step behind it has chosen is settled with that.
        """
        decisions = self._engine.decide(step.launched)
        begun = max(step.launched_at, self._decided_at)
        self._decided_at = time.perf_counter()
        seconds = self._decided_at - begun
        if all(item.count == 1 for item in step.items):
            self._times.observe_step(seconds)
        self._resolve(decisions)
        return decisions, seconds

    def _resolve(self, decisions: Sequence[VerifyResult]) -> None:
        unresolved = {item.state: item for step in self._steps for item in step.items if item.unresolved}
        for decision in decisions if unresolved else ():
            item = unresolved.get(decision.item.state)
            if item is not None:
                item.state.max_inflight_drafts -= item.max_accepted
                item.resolve(decision.path)
                item.state.max_inflight_drafts += item.max_accepted
