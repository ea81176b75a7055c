"""Starts steps: schedules their rows, attaches trees, launches them, and does what is due behind a launch.

Where it can, a step is launched before the one under way is decided (see `StepQueue`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.engine.attempt import attempt
from verify_service.engine.drafter_updates import DrafterUpdates
from verify_service.engine.hidden_state_capture import HiddenStateCapture
from verify_service.engine.loop_stats import LoopCounters
from verify_service.engine.sink import Sink
from verify_service.engine.step_queue import StepQueue
from verify_service.model_runner.base import ModelRunner
from verify_service.model_runner.device_trees import not_on_host
from verify_service.scheduler.scheduler import Scheduler
from verify_service.scheduler.tree_share import several_tenants
from verify_service.speculation.controller import SpeculationController

_log = logging.getLogger(__name__)


class StepLauncher:
    """Part of the loop's thread. Whatever fails, it goes on: `fail` is told of the step that did not start."""

    def __init__(
        self,
        engine: ModelRunner[Any],
        scheduler: Scheduler,
        speculation: SpeculationController,
        steps: StepQueue,
        features: HiddenStateCapture,
        updates: DrafterUpdates,
        counters: LoopCounters,
        sink: Sink,
        *,
        deliver: Callable[[], None],
        fail: Callable[[Sequence[ScheduledRequest] | None], None],
    ) -> None:
        """deliver: tells clients what is decided. fail: ends the requests of rows that failed to start, None for all.

        Both are the loop's.
        """
        self._engine = engine
        self._scheduler = scheduler
        self._speculation = speculation
        self._steps = steps
        self._features = features
        self._updates = updates
        self._counters = counters
        self._sink = sink
        self._deliver = deliver
        self._fail = fail

    def launch(self, *, promised: bool = False) -> bool:
        """Schedule, draft, and start to verify. False where no step can be started now.

        promised: with the trees that a device drafts, before drafters and clients are told of the last step.
        """
        items: list[ScheduledRequest] | None = None
        try:
            if not promised and self._speculation.expects_wait(self._scheduler.running):
                self._deliver()
            items = self._schedule(may_preempt=not (promised or self._steps))
            if items:
                self._features.prepare()
                attach = self._speculation.attach_promised if promised else self._speculation.attach_trees
                attach(items)
                self._queue(items)
                self._work_behind_launch(items, promised=promised)
        except Exception:  # noqa: BLE001 - the loop must outlive any step
            self._fail_to_start(items)
            return False
        return bool(items)

    def _queue(self, items: Sequence[ScheduledRequest], *, ahead: bool = False) -> None:
        """Hand the engine a step."""
        self._features.direct(items)
        self._scheduler.charge(items)
        self._steps.launch(items, ahead=ahead)

    def _fail_to_start(self, items: Sequence[ScheduledRequest] | None) -> None:
        _log.exception("a verify step failed to start")
        self._fail(items)

    def _work_behind_launch(self, items: Sequence[ScheduledRequest], *, promised: bool = False) -> None:
        """Do what the step just launched leaves time for: its host trees, news of the last step, drafts behind it.

        While a device drafts the step's trees clients are told. Where it had promised them, drafters are told then of
        the last step. Masks go before news otherwise: with these threads that serve clients begin to want the
        interpreter.
        """
        if promised or not_on_host(items):
            attempt(self._deliver)
        self._steps.read_trees()
        if promised:
            attempt(self._tell_drafters)
        self._steps.enqueue_drafts()
        attempt(self._steps.begin_masks)

    def launch_unresolved(self) -> None:
        """Start the step after the one under way, where it can be before it is known how far that one brings requests.

        Without trees, or with those that a device drafts behind the one under way. What comes of it is known once that
        one is decided.
        """
        ahead = self._steps.can_launch_ahead
        if not (ahead or (self._steps.can_launch_unresolved and self._scheduler.only_decodes)):
            return
        under_way = self._steps.under_way
        items: list[ScheduledRequest] | None = None
        try:
            self._features.prepare()
            items = self._schedule(may_preempt=False)
            if ahead and not all(item.decides or item.count > 1 for item in items):
                items = []  # beside one row of a prompt trees must be known to the host
            if items:
                for item in items:
                    item.unresolved = (before := under_way.get(item.state)) is not None and before.decides
                if ahead and not several_tenants(items):
                    self._speculation.attach_promised(items, ahead=True)
                self._queue(items, ahead=ahead)
                if not ahead:
                    self._work_behind_launch(items)
        except Exception:  # noqa: BLE001 - the loop must outlive any step
            self._fail_to_start(items)

    def finish_ahead(self) -> None:
        """Do what the launch of a step ahead of the decision before it has left to be done behind that."""
        if items := self._steps.take_ahead():
            attempt(partial(self._work_behind_launch, items, promised=True))

    def _schedule(self, *, may_preempt: bool) -> list[ScheduledRequest]:
        """Rows of the next step; none where the steps under way must be decided first."""
        plan = self._scheduler.schedule(may_preempt=may_preempt)
        if plan is None:
            return []
        now = time.monotonic()
        self._counters.preemptions += len(plan.preempted)
        self._speculation.leave_out(plan.left_out)
        if started := [state.key for state in plan.started if not state.started]:
            self._sink.started(started)
        for state in plan.started:
            self._counters.prefix_hit_tokens += state.kv.num_computed_tokens
            self._engine.begin(state)
            if state.started:
                continue
            state.started = True
            state.stats.scheduled_at = now
            state.stats.cached_tokens = min(state.kv.num_computed_tokens, state.prompt_length)
            if state.draft.proposer:
                self._speculation.begin(state, self._features.history(state), self._scheduler.num_expected)
        return plan.rows

    def _tell_drafters(self) -> None:
        """Of the last step, as the next one is under way with promised trees."""
        self._updates.send(self._scheduler.num_running, launched=True)
