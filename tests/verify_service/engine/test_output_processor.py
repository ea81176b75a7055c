"""What follows a step's decisions while the engine is busy again."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from slipstream.generation_types import FinishReason, PositionLogprobs, SourceCount, SpeculationStep, TokenLogprob
from slipstream.rpc.errors import InternalError
from slipstream_kernels.token_tree import TokenTree
from support.verify_loop import admitted
from verify_service.core.acceptance import AcceptedPath
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import RequestKey
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.core.step_result import StepHandle, VerifyResult
from verify_service.engine.output_processor import OutputProcessor
from verify_service.engine.request_output import PLAIN_STEP
from verify_service.engine.step_queue import Step

CONFIG = EngineConfig(num_pages=8)
ENTRY = PositionLogprobs(TokenLogprob(1, -0.5, 1), ())


class Engine:
    """Knows logprobs of all but request 9, whose logits are lost."""

    def logprobs(self, launched: StepHandle, decision: VerifyResult, count: int) -> tuple[PositionLogprobs, ...]:
        if decision.item.state.key.request_id == 9:
            raise ValueError("the logits are gone")
        return (ENTRY,) * count


class Learner:
    """Notes what drafting is told."""

    def __init__(self) -> None:
        self.lessons: list[tuple[int, int, int, float]] = []

    def observe_step(
        self, decisions: Sequence[VerifyResult], requests: int, nodes: int, seconds: float, awake: int
    ) -> None:
        self.lessons.append((len(decisions), requests, nodes, seconds))


def decision(request_id: int, tokens: tuple[int, ...], tree: TokenTree | None = None) -> VerifyResult:
    state = admitted(CONFIG, (1, 2, 3), request_id=request_id)
    state.kv.num_computed_tokens = 2
    state.tokens.extend(tokens)
    item = ScheduledRequest(state, 1, tree)
    return VerifyResult(item, AcceptedPath(tuple(range(len(tokens) - 1)), tokens), 0)


def epilogue(*decisions: VerifyResult) -> tuple[OutputProcessor, Learner]:
    learner = Learner()
    made = OutputProcessor(Engine(), learner)  # type: ignore[arg-type]  # what an epilogue uses of them
    items = [each.item for each in decisions]
    made.add_step(Step(items, StepHandle(items), 0.0), items, 0.25, 5.0)
    for each in decisions:
        made.add_result(each, each.path.tokens, None)
    return made, learner


def test_decisions_become_outputs_in_order_once_asked_for() -> None:
    tree = TokenTree((8, 4), (-1, 0), None, ("a", "b"))
    made, learner = epilogue(decision(1, (7,)), decision(2, (8, 9), tree))
    assert made and not made.drain() and not learner.lessons
    assert made.process() == []
    first, second = made.drain()
    assert (first.key, first.token_ids, first.step) == (RequestKey(0, 1), (7,), PLAIN_STEP)
    assert (second.token_ids, second.step) == (
        (8, 9),
        SpeculationStep(2, 1, "", (SourceCount("a", 1, 1), SourceCount("b", 1, 0))),
    )
    assert (len(first.logprobs), len(second.logprobs)) == (1, 2)
    assert learner.lessons == [(2, 2, 2, 0.25)]
    assert (made.committed_tokens, made.drafted_tokens, made.accepted_tokens) == (3, 2, 1)
    assert not made and made.process() == [] and not made.drain()


def test_an_output_that_fails_ends_its_request_alone(caplog: pytest.LogCaptureFixture) -> None:
    lost = decision(9, (7,))
    made, _ = epilogue(lost, decision(2, (8,)))
    with caplog.at_level(logging.CRITICAL):
        assert made.process() == [lost.item.state]
    bad, good = made.drain()
    assert isinstance(bad.error, InternalError) and bad.finish_reason is FinishReason.ERROR
    assert good.token_ids == (8,)


def test_a_request_whose_logprobs_went_with_the_device_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def end() -> None:
        raise SystemExit(1)

    monkeypatch.setattr("verify_service.engine.output_processor.end_if_device_lost", end)
    made, _ = epilogue(decision(9, (7,)))
    with pytest.raises(SystemExit):
        made.process()
    assert not made.drain()


def test_outputs_are_written_whatever_is_learnt(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def learn(*_: object) -> None:
        raise ZeroDivisionError

    made, learner = epilogue(decision(1, (7,)))
    monkeypatch.setattr(learner, "observe_step", learn)
    with caplog.at_level(logging.CRITICAL):
        assert made.process() == []
    assert [output.token_ids for output in made.drain()] == [(7,)]


def test_nothing_is_learnt_about_rows_from_a_step_with_a_prompt() -> None:
    prompt = decision(1, (7,))
    prompt.item.count = 3
    made, learner = epilogue(prompt, decision(2, (8,)))
    made.process()
    assert learner.lessons == [(2, 0, 0, 0.25)]
