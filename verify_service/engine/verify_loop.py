"""The verify service's loop: receive, schedule, draft, verify, commit."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Sequence

from slipstream.generation_types import FinishReason
from slipstream.rpc.errors import InternalError, SlipstreamError, UnavailableError
from verify_service.core.device_fault import end_if_device_lost
from verify_service.core.draft_source import DraftSource
from verify_service.core.engine_config import EngineConfig
from verify_service.core.guarded_source import GuardedSource
from verify_service.core.request import GenerationRequest, RequestKey
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.core.step_result import VerifyResult
from verify_service.core.step_time_model import StepTimeModel
from verify_service.engine.adapter_host import AdapterHost, InstallAdapter, RemoveAdapter
from verify_service.engine.command_queue import CancelRequest, CancelSession, CommandQueue, Drain, GrammarReady, Stop
from verify_service.engine.drafter_updates import DrafterUpdates
from verify_service.engine.grammar_gate import GrammarGate
from verify_service.engine.hidden_state_capture import HiddenStateCapture
from verify_service.engine.loop_stats import LoopCounters, LoopState, snapshot
from verify_service.engine.output_processor import OutputProcessor
from verify_service.engine.request_entry import RequestEntry
from verify_service.engine.request_output import cut_output, end_output
from verify_service.engine.sink import Sink
from verify_service.engine.step_launcher import StepLauncher
from verify_service.engine.step_queue import Step, StepQueue
from verify_service.engine.undecided import decided_part, reported_error
from verify_service.engine.work_ahead import WorkAhead
from verify_service.grammar.compiler import GrammarCompiler
from verify_service.grammar.drafting import is_forced
from verify_service.kv_cache.cache_events import TellCache
from verify_service.model_runner.factory import TargetModel, new_model_runner
from verify_service.scheduler.admission import Admission
from verify_service.scheduler.kv_cache_manager import KVCacheManager
from verify_service.scheduler.pass_share import PassShare
from verify_service.scheduler.scheduler import Scheduler
from verify_service.speculation.acceptance_model import AcceptanceModel
from verify_service.speculation.controller import SpeculationController
from verify_service.speculation.goodput import GoodputOptimizer

_log = logging.getLogger(__name__)

THREAD_NAME = "verify-loop"
LOOK_SECONDS = 0.2
"""How often a loop without requests looks whether a drafter has come that wants states, for which it can prepare."""


class VerifyLoop:
    """Owns the one thread that runs the target model.

    Every submitted request is answered through `sink` by outputs that end with a finish reason. All public methods may
    be called from any thread.
    """

    def __init__(
        self,
        model: TargetModel,
        config: EngineConfig,
        drafts: DraftSource,
        sink: Sink,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        """Without `grammars` requests that have one are refused."""
        source, target = GuardedSource(drafts), model.config
        max_context = config.max_context or target.max_context
        self._sink = sink
        self._commands = CommandQueue()
        self._memory = KVCacheManager(config, max_context, target.hidden_size)
        self._engine = new_model_runner(model, config, self._memory.page_table)
        self._engine.warm_up()
        costs = StepTimeModel(self._engine.pass_costs(), target.form.experts)
        self._passes = PassShare(costs, config.prefill_chunk)
        self._scheduler = Scheduler(config, self._memory, self._passes)
        optimizer = GoodputOptimizer(costs, AcceptanceModel())
        self._speculation = SpeculationController(source, self._memory, config, optimizer, self._passes)
        self._step_queue = StepQueue(self._engine, self._speculation)
        self._features = HiddenStateCapture(self._engine, self._memory.features, source, config.feature_boundaries)
        self._ahead = WorkAhead(self._engine, self._features)
        self.adapters = AdapterHost(self._engine, self._commands.put, config.max_adapters)
        eos, loaded, vocab_size = tuple(target.eos_token_ids), self.adapters.loaded, target.vocab_size
        admission = Admission(config, source, loaded, vocab_size=vocab_size, max_context=max_context, eos_token_ids=eos)
        self._states: dict[RequestKey, RequestState] = {}
        self._output_processor = OutputProcessor(self._engine, self._speculation)
        self._gate = GrammarGate(grammars, self._commands.put, most_waiting=config.max_queued)
        self._entry = RequestEntry(admission, self._gate, self._scheduler, self._states, self._output_processor)
        self._updates = DrafterUpdates(self._speculation, self._features)
        self._counters = LoopCounters()
        self._draining = False
        parts = self._engine, self._scheduler, self._speculation, self._step_queue, self._features, self._updates
        self._launcher = StepLauncher(*parts, self._counters, sink, deliver=self._deliver, fail=self._fail_to_start)
        self._state = self._snapshot()
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)

    def start(self) -> None:
        """Do the work ahead that drafters attached by now need, then start the thread."""
        while self._ahead.prepare():
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

    def tell_cache(self, *, wanted: bool) -> None:
        """Tell the sink what the prefix cache holds, all of it and then each change, or do so no longer."""
        self._commands.put(TellCache(wanted))

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

    def prepares(self, boundaries: Collection[int]) -> bool:
        """Whether work ahead for drafters that want these boundaries is not done yet. Running requests go before it."""
        state = self._state
        return not (self._ahead.is_done(boundaries) or state.running or state.queued or state.draining)

    def _run(self) -> None:
        while self._receive():
            self._step()
            self._sink.tell_cached(self._memory.take_cache_events())
        self.adapters.close()
        self._step_queue.drop()

    def _receive(self) -> bool:
        """Take in what has arrived, and sleep while there is nothing to do. False when the loop ends."""
        owes = len(self._gate) > 0
        idle = len(self._states) == len(self._gate) and not (self._step_queue or self._output_processor)
        rests = idle and (self._draining or not self._ahead.prepare())
        ahead = self._step_queue.seconds_ahead
        waits, seconds = rests or ahead > 0, ahead if ahead > 0 else LOOK_SECONDS
        for command in self._commands.take(wait=waits, seconds=seconds, owes=owes or ahead > 0):
            match command:
                case GenerationRequest():
                    self._displace(self._entry.enter(command, draining=self._draining))
                case GrammarReady():
                    self._displace(self._entry.open(command))
                case CancelRequest(key):
                    self._leave([key], FinishReason.CANCELLED)
                case CancelSession(session_id):
                    self._leave([key for key in self._states if key.session_id == session_id], FinishReason.CANCELLED)
                case InstallAdapter() | RemoveAdapter():
                    self.adapters.obey(command)
                case TellCache(wanted):
                    self._memory.watch_cache(wanted=wanted)
                case Drain():
                    self._draining = True
                case Stop():
                    self._leave(list(self._states), FinishReason.ERROR, UnavailableError("the service stops"))
                    self._deliver()
                    return False
        self.adapters.free_unused(self._states.values())
        return True

    def _step(self) -> None:
        """Keep the engine supplied, then take what its oldest step decided.

        Clients are told while the engine works, or a drafter: of a step's tokens after the next launch, or at once
        where another step is under way.
        """
        while self._step_queue.can_launch and self._launcher.launch():
            self._deliver()
        self._deliver()
        if self._step_queue.seconds_ahead > 0:
            return  # to requests that come meanwhile
        self._launcher.launch_unresolved()
        if self._step_queue:
            self._settle(self._step_queue.next())
            if self._step_queue:
                self._deliver()

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
        self._launcher.finish_ahead()

    def _commit(
        self, step: Step, live: Sequence[ScheduledRequest], decisions: Sequence[VerifyResult], seconds: float
    ) -> None:
        """Add what was decided to each request, and let go of what is over; then tell drafters.

        Before that, the next step is launched if a device drafts its trees already, or what a launch ahead has left is
        done. Clients are told later, but of a request's first tokens at once: whatever drafters have to hear of a whole
        prompt takes milliseconds.
        """
        now = time.monotonic()
        progressed: list[tuple[RequestState, tuple[int, ...]]] = []
        self._counters.steps += 1
        self._output_processor.add_step(step, live, seconds, now)
        for item in live:
            item.state.kv.num_written_tokens = item.base
            if item.first < item.state.prompt_length:
                self._counters.prompt_tokens += item.prompt_rows
        features = self._features.take(step, live, [decision.item for decision in decisions])
        undecided: list[VerifyResult] = []
        begins = any(not decision.item.state.stats.first_token_at for decision in decisions)
        for decision in decisions:
            decided = decided_part(decision)
            if decided is not decision:
                undecided.append(decision)
            tokens = self._commit_one(decided, now) if decided is not None else ()
            if tokens and decided is decision:
                progressed.append((decision.item.state, tokens))
        self._updates.put(progressed, features)
        self._launcher.finish_ahead()
        if self._speculation.can_launch_promised and not (undecided or self._step_queue):
            self._launcher.launch(promised=True)
        if begins:
            self._deliver()
        self._updates.send(self._scheduler.num_running)
        for decision in undecided:
            self._leave([decision.item.state.key], FinishReason.ERROR, reported_error(decision), keep=False)

    def _commit_one(self, decision: VerifyResult, now: float) -> tuple[int, ...]:
        """Append one request's tokens; returns them if the request goes on."""
        state, tree = decision.item.state, decision.item.tree
        kv, draft = state.kv, state.draft
        count, reason = cut_output(state, decision.path.tokens)
        tokens = decision.path.tokens[:count]
        state.tokens.extend(tokens)
        kv.num_written_tokens = len(state.tokens) - 1
        kv.num_computed_tokens = state.length - 1
        if not state.prefilled:
            state.prefilled = True
            self._memory.cache_full_pages(state)
        if tree is not None and draft.proposer and (state.grammar is None or not is_forced(tree)):
            draft.unsent_verified += ((tree, decision.path.nodes[:count]),)
        if tokens and not state.stats.first_token_at:
            state.stats.first_token_at = now
        self._output_processor.add_result(decision, tokens, reason)
        if reason is not None:
            self._features.keep(state)
            self._let_go(state, reason, keep=True)
            return ()
        self._engine.commit(state, tokens)
        return tokens

    def _displace(self, state: RequestState | None) -> None:
        if state is not None:
            self._leave([state.key], FinishReason.ERROR, self._scheduler.places.refusal())

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

    def _fail_to_start(self, items: Sequence[ScheduledRequest] | None) -> None:
        self._fail(list(self._states) if items is None else [item.state.key for item in items])

    def _let_go(self, state: RequestState, reason: FinishReason, *, keep: bool) -> None:
        state.finished = True
        if not self._gate.leave(state):
            self._scheduler.remove(state, keep=keep)
        del self._states[state.key]
        if state.started and state.draft.proposer:
            self._speculation.end(state, reason)

    def _write_outputs(self) -> None:
        """Turn what was decided into outputs; requests for which that fails are over."""
        for state in self._output_processor.process():
            if not state.finished:
                self._let_go(state, FinishReason.ERROR, keep=False)

    def _deliver(self) -> None:
        """Write outputs and show the new state, then hand the outputs to the sink."""
        self._write_outputs()
        self._state = self._snapshot()
        self._sink.deliver(self._output_processor.drain())

    def _snapshot(self) -> LoopState:
        parts = self._counters, self._scheduler, self._memory, self._output_processor, self._passes
        adapters = self.adapters.states(self._states.values())
        return snapshot(*parts, draining=self._draining, prepared=self._ahead.pieces, adapters=adapters)
