"""The verify service's loop: receive, schedule, draft, verify, commit."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from slipstream.generation_types import FinishReason
from slipstream.rpc.errors import InternalError, InvalidArgumentError, SlipstreamError, UnavailableError
from slipstream.rpc.logs import with_fields
from verify_service.core.device_fault import end_if_device_lost
from verify_service.core.draft_source import DraftSource, HiddenStateTaker, OnDeviceDrafter, OutcomeTreeSource
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest, RequestKey, StepOutput
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.core.step_result import VerifyResult
from verify_service.core.step_time_model import StepTimeModel
from verify_service.engine.command_queue import CancelRequest, CancelSession, CommandQueue, Drain, Stop
from verify_service.engine.drafter_updates import DrafterUpdates
from verify_service.engine.hidden_state_capture import HiddenStateCapture
from verify_service.engine.loop_stats import LoopCounters, LoopState, snapshot
from verify_service.engine.output_processor import OutputProcessor
from verify_service.engine.request_output import cut_output, end_output, refusal
from verify_service.engine.step_queue import Step, StepQueue
from verify_service.engine.undecided import decided_part, undecided_error
from verify_service.model_runner.factory import TargetModel, new_model_runner
from verify_service.scheduler.admission import Admission
from verify_service.scheduler.kv_cache_manager import KVCacheManager
from verify_service.scheduler.pass_share import PassShare
from verify_service.scheduler.scheduler import Scheduler
from verify_service.speculation.controller import SpeculationController
from verify_service.speculation.goodput import GoodputOptimizer

_log = logging.getLogger(__name__)

Sink = Callable[[list[StepOutput]], None]

THREAD_NAME = "verify-loop"
LOOK_SECONDS = 1.0
"""How often a loop without requests looks whether a drafter has come that wants states, for which it can prepare."""


class VerifyLoop:
    """Owns the one thread that runs the target model.

    Every submitted request is answered through `sink`, on the loop's thread, by outputs that end with a finish
    reason; the sink takes one list a step and must not wait. All public methods may be called from any thread.
    """

    def __init__(
        self,
        model: TargetModel,
        config: EngineConfig,
        trees: DraftSource,
        sink: Sink,
        taker: HiddenStateTaker | None = None,
        outcome_source: OutcomeTreeSource | None = None,
        on_device_drafter: OnDeviceDrafter | None = None,
        tell_started: Callable[[list[RequestKey]], None] = lambda keys: None,
    ) -> None:
        """`outcome_source` and `on_device_drafter` are the parts of `trees` for undecided steps, if it has any.

        `tell_started` is called on the loop's thread with requests of which a step computes the first rows, before it.
        """
        max_context = config.max_context or model.config.max_context
        self._sink = sink
        self._tell_started = tell_started
        self._commands = CommandQueue()
        self._memory = KVCacheManager(config, max_context, model.config.hidden_size)
        self._engine = new_model_runner(model, config, self._memory.page_table)
        self._engine.warm_up()
        costs = StepTimeModel(self._engine.pass_costs())
        self._passes = PassShare(costs, config.prefill_chunk)
        self._scheduler = Scheduler(config, self._memory, self._passes)
        self._speculation = SpeculationController(
            trees, self._memory, config, GoodputOptimizer(costs), outcome_source, on_device_drafter, self._passes
        )
        self._step_queue = StepQueue(self._engine, self._speculation)
        self._features = HiddenStateCapture(self._engine, self._memory.features, taker, config.feature_boundaries)
        self._admission = Admission(
            config,
            trees,
            vocab_size=model.config.vocab_size,
            max_context=max_context,
            eos_token_ids=tuple(model.config.eos_token_ids),
        )
        self._states: dict[RequestKey, RequestState] = {}
        self._output_processor = OutputProcessor(self._engine, self._speculation)
        self._updates = DrafterUpdates(self._speculation, self._features)
        self._counters = LoopCounters()
        self._draining = False
        self._state = self._snapshot()
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)

    def start(self) -> None:
        """Do the work ahead that drafters attached by now need, then start the thread."""
        while self._prepare():
            pass
        self._thread.start()

    def submit(self, request: GenerationRequest) -> None:
        """Hand over a request. Never raises; a refusal comes as an output with an error."""
        self._commands.put(request)

    def cancel(self, key: RequestKey) -> None:
        """End a request, if it still runs, and free its pages before the next step."""
        self._commands.put(CancelRequest(key))

    def cancel_session(self, session_id: int) -> None:
        """End all requests of a session."""
        self._commands.put(CancelSession(session_id))

    def drain(self) -> None:
        """Refuse requests from now on with UnavailableError; those that run or queue finish."""
        self._commands.put(Drain())

    def wait_idle(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds until no request runs or queues; returns whether that came true."""
        return self._commands.wait_idle(timeout)

    def stop(self) -> None:
        """End the thread after the step in progress; requests left over get UnavailableError."""
        self._commands.put(Stop())
        self._thread.join()

    def state(self) -> LoopState:
        """Counters as of the end of the latest step."""
        return self._state

    def _run(self) -> None:
        while self._receive():
            self._step()
        self._step_queue.drop()

    def _receive(self) -> bool:
        """Take in what has arrived, and sleep while there is nothing to do. False when the loop ends."""
        idle = not (self._states or self._step_queue or self._output_processor)
        for command in self._commands.take(wait=idle and not self._prepare(), seconds=LOOK_SECONDS):
            match command:
                case GenerationRequest():
                    self._enter(command)
                case CancelRequest(key):
                    self._leave([key], FinishReason.CANCELLED)
                case CancelSession(session_id):
                    keys = [key for key in self._states if key.session_id == session_id]
                    self._leave(keys, FinishReason.CANCELLED)
                case Drain():
                    self._draining = True
                case Stop():
                    self._leave(list(self._states), FinishReason.ERROR, UnavailableError("the service stops"))
                    self._deliver()
                    return False
        return True

    def _prepare(self) -> bool:
        """Use a moment without requests for work ahead; whether more of it may be left."""
        if self._draining:
            return False
        try:
            self._features.prepare()
            more = self._engine.prepare()
            self._counters.prepared += more
            return more
        except Exception:  # noqa: BLE001 - the loop must outlive work that nobody waits for
            _log.exception("work ahead of requests failed")
            end_if_device_lost()
            return False

    def _step(self) -> None:
        """Keep the engine supplied, then take what its oldest step decided.

        Clients are told while the engine works, or a drafter: of a step's tokens after the next launch, or at once
        where another step is under way.
        """
        while self._step_queue.can_launch and self._launch():
            self._deliver()
        self._deliver()
        if self._step_queue.can_launch_ahead and self._scheduler.only_decodes:
            self._launch_ahead()
        if self._step_queue:
            self._settle(self._step_queue.next())
            if self._step_queue:
                self._deliver()

    def _launch(self, *, promised: bool = False) -> bool:
        """Schedule, draft, and start to verify. False where no step can be started now.

        promised: with the trees that a device drafts, before drafters and clients are told of the last step.
        """
        items: list[ScheduledRequest] | None = None
        try:
            if not promised and self._speculation.expects_wait(self._scheduler.running):
                self._deliver()
            items = self._schedule(may_preempt=not (promised or self._step_queue))
            if items:
                self._features.prepare()
                attach = self._speculation.attach_promised if promised else self._speculation.attach_trees
                attach(items)
                self._features.direct(items)
                self._scheduler.charge(items)
                afterwards, meanwhile = (self._tell_behind_launch, None) if promised else (None, self._deliver)
                self._step_queue.launch(items, meanwhile=meanwhile, afterwards=afterwards)
        except Exception:  # noqa: BLE001 - the loop must outlive any step
            _log.exception("a verify step failed to start")
            self._fail(list(self._states) if items is None else [item.state.key for item in items])
            return False
        return bool(items)

    def _launch_ahead(self) -> None:
        """Start the step after the one under way with trees for the ways in which that may end, if most are there.

        As late as that keeps the engine supplied. What comes of it is known once the one under way is decided.
        """
        under_way = self._step_queue.under_way
        items: list[ScheduledRequest] | None = None
        try:
            self._features.prepare()
            spare, asked = self._step_queue.launch_slack(), time.perf_counter()
            may_begin = self._speculation.wait_for_outcomes(under_way.values(), spare)
            begun = min(time.perf_counter(), asked + max(0.0, spare or 0.0))
            if not (may_begin and self._step_queue.can_launch_ahead):
                return
            items = self._schedule(may_preempt=False)
            if items:
                self._speculation.attach_outcome_trees(items, under_way)
                self._scheduler.charge(items)
                self._step_queue.launch(items, begun)
        except Exception:  # noqa: BLE001 - the loop must outlive any step
            _log.exception("a verify step failed to start")
            self._fail(list(self._states) if items is None else [item.state.key for item in items])

    def _schedule(self, *, may_preempt: bool) -> list[ScheduledRequest]:
        """Rows of the next step; none where the steps under way must be decided first."""
        plan = self._scheduler.schedule(may_preempt=may_preempt)
        if plan is None:
            return []
        now = time.monotonic()
        self._counters.preemptions += len(plan.preempted)
        self._speculation.leave_out(plan.left_out)
        if started := [state.key for state in plan.started if not state.started]:
            self._tell_started(started)
        for state in plan.started:
            self._counters.prefix_hit_tokens += state.num_computed_tokens
            self._engine.begin(state)
            if state.started:
                continue
            state.started = True
            state.scheduled_at = now
            state.cached_tokens = min(state.num_computed_tokens, state.prompt_length)
            if state.proposer:
                self._speculation.begin(state, self._features.history(state))
        return plan.rows

    def _settle(self, step: Step) -> None:
        """Wait for a step's tokens and commit them. A step that fails ends the requests it was for, and no other."""
        try:
            decisions, seconds = self._step_queue.decide(step)
            live: Sequence[ScheduledRequest] = [item for item in step.items if not item.state.finished]
            if live:
                if len(live) < len(step.items):
                    decisions = [decision for decision in decisions if not decision.item.state.finished]
                self._commit(step, live, decisions, seconds)
        except Exception:  # noqa: BLE001 - the loop must outlive any step
            _log.exception("a verify step failed")
            self._fail([item.state.key for item in step.items if not item.state.finished])

    def _commit(
        self, step: Step, live: Sequence[ScheduledRequest], decisions: Sequence[VerifyResult], seconds: float
    ) -> None:
        """Add what was decided to each request, and let go of what is over; then tell drafters.

        Before that, the next step is launched if a device drafts its trees already. Clients are told later.
        """
        now = time.monotonic()
        progressed: list[tuple[RequestState, tuple[int, ...]]] = []
        self._counters.steps += 1
        self._output_processor.add_step(step, live, seconds, now)
        for item in live:
            item.state.num_written_tokens = item.base
            self._counters.prompt_tokens += item.prompt_rows
        features = self._features.take(step, live, [decision.item for decision in decisions])
        undecided: list[RequestState] = []
        for decision in decisions:
            decided = decided_part(decision)
            if decided is not decision:
                undecided.append(decision.item.state)
            tokens = self._commit_one(decided, now) if decided is not None else ()
            if tokens and decided is decision:
                progressed.append((decision.item.state, tokens))
        self._updates.put(progressed, features)
        if self._speculation.can_launch_promised and not (undecided or self._step_queue):
            self._launch(promised=True)
        self._updates.send(self._scheduler.num_running, self._step_queue.under_way)
        for state in undecided:
            error = undecided_error(len(state.tokens))
            named = with_fields(request_id=state.request.context.request_id or None)
            _log.error("request %d of session %d: %s", state.key.request_id, state.key.session_id, error, extra=named)
            self._leave([state.key], FinishReason.ERROR, error, keep=False)

    def _tell_behind_launch(self) -> None:
        """Tell drafters of the last step, and clients, as the next one is under way with promised trees."""
        self._updates.send(self._scheduler.num_running, {}, launched=True)
        self._deliver()

    def _commit_one(self, decision: VerifyResult, now: float) -> tuple[int, ...]:
        """Append one request's tokens; returns them if the request goes on."""
        state = decision.item.state
        count, reason = cut_output(state, decision.path.tokens)
        tokens = decision.path.tokens[:count]
        state.tokens.extend(tokens)
        state.num_written_tokens = len(state.tokens) - 1
        state.num_computed_tokens = state.length - 1
        if not state.prefilled:
            state.prefilled = True
            self._memory.cache_full_pages(state)
        if tokens and not state.first_token_at:
            state.first_token_at = now
        self._output_processor.add_result(decision, tokens, reason)
        if reason is not None:
            self._features.keep(state)
            self._let_go(state, reason, keep=True)
            return ()
        self._engine.commit(state, tokens)
        return tokens

    def _enter(self, request: GenerationRequest) -> None:
        """Queue a request, or answer why not."""
        try:
            if self._draining:
                raise UnavailableError("the service drains and takes no new requests")
            if request.key in self._states:
                raise InvalidArgumentError(
                    f"request_id {request.key.request_id} is in use in this session", field="request_id"
                )
            state = self._admission.admit(request)
            displaced = self._scheduler.places.displace(state) if state.finish_reason is None else None
        except SlipstreamError as error:
            self._output_processor.append(refusal(request, error))
            return
        if state.finish_reason is not None:
            self._output_processor.append(end_output(state, state.finish_reason, time.monotonic()))
            return
        if displaced is not None:
            self._leave([displaced.key], FinishReason.ERROR, self._scheduler.places.refusal())
        self._states[state.key] = state
        self._scheduler.add(state)

    def _leave(
        self,
        keys: Iterable[RequestKey],
        reason: FinishReason,
        error: SlipstreamError | None = None,
        *,
        keep: bool = True,
    ) -> None:
        """End requests from outside a commit; those already gone are passed over."""
        self._write_outputs()
        now = time.monotonic()
        for key in keys:
            state = self._states.get(key)
            if state is not None:
                self._output_processor.append(end_output(state, reason, now, error))
                self._let_go(state, reason, keep=keep)

    def _fail(self, keys: Iterable[RequestKey]) -> None:
        end_if_device_lost()
        error = InternalError("the verify step of this request failed")
        self._leave(keys, FinishReason.ERROR, error, keep=False)

    def _let_go(self, state: RequestState, reason: FinishReason, *, keep: bool) -> None:
        state.finished = True
        self._scheduler.remove(state, keep=keep)
        del self._states[state.key]
        if state.started and state.proposer:
            self._speculation.end(state.key, reason)

    def _write_outputs(self) -> None:
        """Turn what was decided into outputs; requests for which that fails are over."""
        for state in self._output_processor.process():
            if not state.finished:
                self._let_go(state, FinishReason.ERROR, keep=False)

    def _deliver(self) -> None:
        """Write outputs and show the new state, then hand the outputs to the sink."""
        self._write_outputs()
        self._state = self._snapshot()
        outputs = self._output_processor.drain()
        if outputs:
            try:
                self._sink(outputs)
            except Exception:  # noqa: BLE001 - the loop must outlive its sink's mistakes
                _log.exception("the sink failed to take %d outputs", len(outputs))

    def _snapshot(self) -> LoopState:
        parts = self._counters, self._scheduler, self._memory, self._output_processor, self._passes
        return snapshot(*parts, draining=self._draining)
