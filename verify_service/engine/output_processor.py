"""What is left to do for decided steps that no launch has to wait for: outputs, figures, what drafting learns."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from slipstream.bucket_counts import BucketCounts
from slipstream.generation_types import FinishReason, SpeculationStep
from slipstream.rpc.errors import InternalError
from verify_service.core.acceptance import NO_TOKEN, accepted_by_source
from verify_service.core.device_fault import end_if_device_lost
from verify_service.core.expert_overlap import ExpertOverlap
from verify_service.core.grammar_seconds import GrammarSeconds
from verify_service.core.request import StepOutput
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.core.step_result import VerifyResult
from verify_service.engine.request_output import PLAIN_STEP, end_output, score_outputs, step_output
from verify_service.engine.step_queue import Step
from verify_service.engine.step_trace import traced
from verify_service.grammar.drafting import is_forced
from verify_service.grammar.forced_texts import GRAMMAR
from verify_service.model_runner.base import ModelRunner
from verify_service.speculation.controller import SpeculationController
from verify_service.speculation.forecast import Forecast

_log = logging.getLogger(__name__)

_ROW_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_MOST_STEPS: Final = 4096
_SECOND_BUCKETS: Final = (
    0.0005,
    0.001,
    0.002,
    0.003,
    0.005,
    0.0075,
    0.01,
    0.015,
    0.02,
    0.03,
    0.05,
    0.1,
    0.25,
    1.0,
    5.0,
)


@dataclass(slots=True)
class _Decided:
    """A decided step; `entries` are its decisions, the tokens of each that are output, and why the output ends.

    `scored` are the items whose rows tell logprobs of their prompts.
    """

    step: Step
    seconds: float
    now: float
    scored: Sequence[ScheduledRequest] = ()
    entries: list[tuple[VerifyResult, tuple[int, ...], FinishReason | None]] = field(default_factory=list)


class OutputProcessor:
    """Gathers decisions, and later turns them into outputs, in order."""

    def __init__(self, engine: ModelRunner[Any], drafting: SpeculationController) -> None:
        self._engine = engine
        self._speculation = drafting
        self._decided: list[_Decided] = []
        self._outputs: list[StepOutput] = []
        self._steps: dict[tuple[int, int, str], SpeculationStep] = {}
        """What steps did for requests: many are told the same."""
        self.verify_steps = 0
        self.committed_tokens = 0
        self.drafted_tokens = 0
        self.accepted_tokens = 0
        self.step_rows = BucketCounts(_ROW_BUCKETS)
        self.step_seconds = BucketCounts(_SECOND_BUCKETS)

    @property
    def grammar_seconds(self) -> GrammarSeconds:
        """What grammars have cost so far."""
        decided = self._engine.grammar_seconds
        return replace(decided, drafts=self._speculation.grammar_seconds)

    @property
    def experts(self) -> ExpertOverlap | None:
        """What steps of a mixture wake of its experts; None of another model."""
        return self._speculation.experts

    @property
    def forecast(self) -> Forecast:
        """What steps were expected to yield when their trees were asked for."""
        return self._speculation.forecast

    def __bool__(self) -> bool:
        """Whether there is anything left to do."""
        return bool(self._decided or self._outputs)

    def add_step(self, step: Step, live: Sequence[ScheduledRequest], seconds: float, now: float) -> None:
        """A step is decided, which took the engine so many seconds; `now` is time.monotonic().

        `live` are its items whose requests are not over. Their prompts' tokens count as scored as far as they are.
        """
        scored = [item for item in live if item.scored]
        for item in scored:
            item.state.num_scored_tokens = item.scored.stop
        self._decided.append(_Decided(step, seconds, now, scored))

    def add_result(self, decision: VerifyResult, tokens: tuple[int, ...], reason: FinishReason | None) -> None:
        """A decision of that step has made `tokens` output, which ends there for `reason`, if it does."""
        self._decided[-1].entries.append((decision, tokens, reason))

    def append(self, output: StepOutput) -> None:
        """An output that follows those written so far."""
        self._outputs.append(output)

    def process(self) -> list[RequestState]:
        """Work off what was decided. Returns the requests whose outputs failed; their last outputs say so."""
        failed: list[RequestState] = []
        decided, self._decided = self._decided, []
        for each in decided:
            self.step_rows.observe(_pass_rows(each.step))
            self.step_seconds.observe(each.seconds)
            self._learn(each)
            for item in each.scored:
                if item.state not in failed:
                    try:
                        self._outputs.extend(self._scores(each, item))
                    except Exception:  # noqa: BLE001 - the loop must outlive any step
                        self._fail(item.state, failed, each.now)
            for entry in each.entries:
                state = entry[0].item.state
                if failed and state in failed:
                    continue
                try:
                    self._outputs.append(self._output(each, *entry))
                except Exception:  # noqa: BLE001 - the loop must outlive any step
                    self._fail(state, failed, each.now)
        return failed

    def _fail(self, state: RequestState, failed: list[RequestState], now: float) -> None:
        """Log why a request's output failed, and write its last one."""
        _log.exception("the output of a verify step failed")
        end_if_device_lost()
        failed.append(state)
        error = InternalError("the verify step of this request failed")
        self._outputs.append(end_output(state, FinishReason.ERROR, now, error))

    def drain(self) -> list[StepOutput]:
        """The outputs written since the last call."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def _learn(self, decided: _Decided) -> None:
        """Have drafting take a step in, which changes no token whatever comes of it."""
        items = decided.step.items
        decoding = all(item.count == 1 for item in items)
        nodes = sum(item.num_rows - 1 for item in items)
        decisions = [decision for decision, _, _ in decided.entries if decision.path.tokens[-1] != NO_TOKEN]
        awake = decided.step.launched.experts_awake
        try:
            self._speculation.observe_step(decisions, len(items) if decoding else 0, nodes, decided.seconds, awake)
        except Exception:  # noqa: BLE001 - it may cost speed and nothing else
            _log.exception("nothing is learnt from a step")

    def _scores(self, decided: _Decided, item: ScheduledRequest) -> Iterable[StepOutput]:
        return score_outputs(item.state, self._engine.prompt_scores(decided.step.launched, item))

    def _output(
        self, decided: _Decided, decision: VerifyResult, tokens: tuple[int, ...], reason: FinishReason | None
    ) -> StepOutput:
        logprobs = self._engine.logprobs(decided.step.launched, decision, len(tokens)) if tokens else ()
        speculation = self._count(decision, len(tokens))
        state = decision.item.state
        if state.request.speculation.trace:
            rows = _pass_rows(decided.step)
            speculation = traced(speculation, decision, len(tokens), pass_rows=rows, pass_seconds=decided.seconds)
        return step_output(state, tokens, logprobs, speculation, reason, decided.now)

    def _count(self, decision: VerifyResult, count: int) -> SpeculationStep:
        """Enter a decision of which `count` tokens are output into the figures."""
        state, tree = decision.item.state, decision.item.tree
        stats = state.stats
        stats.verify_steps += 1
        self.verify_steps += 1
        self.committed_tokens += count
        if tree is None:
            return PLAIN_STEP
        accepted = decision.path.nodes[:count]
        drafted, right = len(tree.token_ids), len(accepted)
        stats.drafted_tokens += drafted
        stats.accepted_tokens += right
        self.drafted_tokens += drafted
        self.accepted_tokens += right
        if tree.sources:
            proposer = GRAMMAR if is_forced(tree) else state.draft.proposer
            return SpeculationStep(drafted, right, proposer, accepted_by_source(tree, accepted))
        figures = drafted, right, state.draft.proposer
        step = self._steps.get(figures)
        if step is None:
            if len(self._steps) >= _MOST_STEPS:
                self._steps.clear()
            step = self._steps[figures] = SpeculationStep(*figures)
        return step


def _pass_rows(step: Step) -> int:
    return sum(item.count + item.num_rows - 1 for item in step.items)
