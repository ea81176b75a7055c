"""A loop that runs ahead of its device tells clients what one that waits would, and cleans up after itself."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from slipstream.generation_types import FinishReason
from slipstream.rpc.errors import InternalError
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.gpu.batch.pass_plan import PassPlan
from slipstream_kernels.token_tree import TokenTree
from support.host_model import HostModel, HostTicket
from support.plain_reference import plain_generate
from support.verify_loop import LoopRunner, OracleTrees, running_loop
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest, RequestKey, SamplingParams, StepOutput

CONFIG = EngineConfig(num_pages=64, page_size=4, adaptive=False)
PROMPT = tuple(range(40, 63))
GREEDY = SamplingParams(temperature=0.0, max_tokens=30, seed=1, ignore_eos=True)


def request(request_id: int = 0, prompt: Sequence[int] = PROMPT, **sampling: object) -> GenerationRequest:
    params = replace(GREEDY, **sampling)  # type: ignore[arg-type]  # any field
    return GenerationRequest(RequestKey(0, request_id), tuple(prompt), arrival=0.0, sampling=params)


@pytest.fixture(scope="module")
def text(model: CausalLM) -> list[int]:
    return plain_generate(model, list(PROMPT), replace(GREEDY, max_tokens=60))[0]


def journal(runner: LoopRunner) -> str:
    """L for each launch, R for each wait for results."""
    return "".join({"launch": "L", "results": "R"}.get(entry, "") for entry in runner.model.journal)


def test_a_step_is_launched_before_the_one_before_it_is_decided(model: CausalLM) -> None:
    with running_loop(partial(HostModel, model), CONFIG) as runner:
        runner.run([request(max_tokens=5)])
        assert journal(runner) == "LL" + "RL" * 3 + "RR"
        assert runner.loop.state().steps == 5


def test_a_stop_found_late_costs_one_row_and_nothing_else(model: CausalLM, text: list[int]) -> None:
    at = text.index(text[9]) + 1
    with running_loop(partial(HostModel, model), CONFIG) as runner:
        (answer,) = runner.run([request(stop_token_ids=(text[9],))])
        assert runner.loop.wait_idle(60.0)
        assert journal(runner).count("L") == journal(runner).count("R") == at + 1
        state = runner.loop.state()
    assert answer.token_ids == tuple(text[:at])
    assert answer.finish_reason is FinishReason.STOP
    assert answer.last.usage is not None
    assert (answer.last.usage.verify_steps, state.steps, state.committed_tokens) == (at, at, at)


def test_the_next_request_takes_over_line_and_pages_of_one_whose_last_row_is_under_way(
    model: CausalLM, text: list[int]
) -> None:
    config = EngineConfig(num_pages=9, page_size=4, max_running=1, prefix_cache=False)
    pick = random.Random(2)
    requests = [request(0, max_tokens=12, stop_token_ids=(text[3],), presence_penalty=0.1, logit_bias=((5, -3.0),))]
    for request_id in range(1, 6):
        prompt = [pick.randrange(512) for _ in range(20)]
        requests.append(request(request_id, prompt, max_tokens=12, temperature=1.2, stop_token_ids=tuple(range(20))))
    expected = [plain_generate(model, list(one.prompt_token_ids), one.sampling) for one in requests]
    assert {reason for _, _, reason in expected} == {FinishReason.STOP}
    assert len({len(tokens) for tokens, _, _ in expected}) >= 3
    with running_loop(partial(HostModel, model), config) as runner:
        answers = runner.run(requests)
    assert [answer.token_ids for answer in answers] == [tuple(tokens) for tokens, _, _ in expected]
    assert [answer.finish_reason for answer in answers] == [reason for _, _, reason in expected]


def test_usage_is_what_a_loop_that_waits_reports(model: CausalLM, text: list[int]) -> None:
    """Prompts that continue an output find in the prefix cache what was settled, and not a page more."""
    requests = [request(0, max_tokens=12, stop_token_ids=(text[8],))]
    requests += [
        request(n, (*PROMPT, *text[: n + 4]), max_tokens=3 * n, stop_token_ids=(text[n + 9],)) for n in range(1, 9)
    ]
    usages = []
    for target in (model, partial(HostModel, model)):
        with running_loop(target, CONFIG) as runner:
            usages.append([answer.last.usage for answer in runner.run(requests, 1)])
            assert runner.loop.wait_idle(60.0)
    assert usages[0] == usages[1]


class Cancelling(LoopRunner):
    """Cancels a request on its third token, from within the sink."""

    def _take(self, outputs: list[StepOutput]) -> None:
        super()._take(outputs)
        for output in outputs:
            if len(self.answers[output.key].token_ids) == 3 and output.key.request_id < 2:
                self.loop.cancel(output.key)


def test_a_request_cancelled_while_its_rows_are_under_way_is_dropped(model: CausalLM, text: list[int]) -> None:
    runner = Cancelling(partial(HostModel, model), replace(CONFIG, prefix_cache=False))
    runner.loop.start()
    answers = runner.run([request(0), request(1, PROMPT[4:]), request(2)])
    assert runner.loop.wait_idle(60.0)
    assert [answer.finish_reason for answer in answers] == [
        FinishReason.CANCELLED,
        FinishReason.CANCELLED,
        FinishReason.LENGTH,
    ]
    assert [len(answer.token_ids) for answer in answers] == [3, 3, 30]
    assert answers[2].token_ids == tuple(text[:30])
    assert runner.loop.state().pages_free == CONFIG.num_pages
    assert len(runner.answers[RequestKey(0, 0)].outputs) == 4
    runner.loop.stop()


def test_a_key_is_free_again_while_rows_of_its_first_owner_are_under_way(model: CausalLM, text: list[int]) -> None:
    class Repeating(LoopRunner):
        def _take(self, outputs: list[StepOutput]) -> None:
            super()._take(outputs)
            (output,) = outputs
            if output.finish_reason is FinishReason.STOP:
                self.loop.submit(request(0, PROMPT[2:], max_tokens=7))

    runner = Repeating(partial(HostModel, model), CONFIG)
    runner.loop.start()
    runner.loop.submit(request(0, stop_token_ids=(text[2],)))
    runner.wait_for(
        lambda: bool(runner.answers) and runner.answers[RequestKey(0, 0)].finish_reason is FinishReason.LENGTH
    )
    expected = plain_generate(model, list(PROMPT[2:]), replace(GREEDY, max_tokens=7))[0]
    assert runner.answers[RequestKey(0, 0)].token_ids == (*text[: text.index(text[2]) + 1], *expected)
    runner.loop.stop()


class Refusing(HostModel):
    """Refuses to launch a pass with a certain token."""

    def launch(self, plan: PassPlan, *, again: bool = False) -> HostTicket:
        if 511 in plan.token_ids:
            raise ValueError("this pass is not launched")
        return super().launch(plan, again=again)


class Breaking(HostModel):
    """Breaks down in the pass of that number, counted from 1, once it runs."""

    breaks = 0
    passes = 0

    def _run(self, plan: PassPlan, ticket: HostTicket) -> None:
        self.passes += 1
        if self.passes == self.breaks:
            raise RuntimeError("this pass fails")
        super()._run(plan, ticket)


def test_a_launch_that_fails_ends_its_requests_though_a_step_of_theirs_is_under_way(
    model: CausalLM, text: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    class Following(LoopRunner):
        def _take(self, outputs: list[StepOutput]) -> None:
            super()._take(outputs)
            if RequestKey(0, 1) not in self.answers:
                self.loop.submit(request(1, (*PROMPT, 511)))

    runner = Following(partial(Refusing, model), CONFIG)
    runner.loop.start()
    with caplog.at_level(logging.CRITICAL):
        (answer,) = runner.run([request(0)])
        runner.wait_for(lambda: runner.finished(RequestKey(0, 1)))
    for key in (RequestKey(0, 0), RequestKey(0, 1)):
        assert isinstance(runner.answers[key].last.error, InternalError)
    assert answer.token_ids == tuple(text[: len(answer.token_ids)])
    assert runner.run([request(2)])[0].token_ids == tuple(text[:30])
    assert runner.loop.wait_idle(60.0)
    state = runner.loop.state()
    assert state.pages_free == state.pages_total - state.pages_cached
    runner.loop.stop()


@pytest.mark.parametrize("ahead", [1, 2, 0, -1], ids=["first", "second", "last", "one too many"])
def test_a_step_that_fails_under_way_ends_its_requests_alone(
    model: CausalLM, text: list[int], ahead: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A failure of the step after the last one, which is for nobody, is noticed by nobody."""
    target = partial(Breaking, model)
    at = text.index(text[8]) + 1
    number = ahead if ahead > 0 else at - ahead
    with caplog.at_level(logging.CRITICAL):
        runner = LoopRunner(target, replace(CONFIG, prefix_cache=False))
        runner.model.breaks = number
        runner.loop.start()
        (answer,) = runner.run([request(0, stop_token_ids=(text[8],))])
        if number <= at:
            assert isinstance(answer.last.error, InternalError)
            assert answer.token_ids == tuple(text[: number - 1])
        else:
            assert answer.last.error is None
            assert answer.token_ids == tuple(text[:at])
        assert runner.run([request(2)])[0].token_ids == tuple(text[:30])
        assert runner.loop.wait_idle(60.0)
        assert runner.loop.state().pages_free == CONFIG.num_pages
        runner.loop.stop()


class Visiting(OracleTrees):
    """Drafts in turns: expected for a while, then gone for a while."""

    turns = 0

    def expects(self, keys: Sequence[RequestKey]) -> bool:
        self.turns += 1
        return self.turns // 5 % 2 == 1

    def propose(self, key: RequestKey, nodes: int, depth: int) -> TokenTree | None:
        return super().propose(key, min(nodes, 3), min(depth, 2))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_trees_that_come_and_go_change_no_token(model: CausalLM, temperature: float) -> None:
    one = request(0, temperature=temperature, max_tokens=80, repetition_penalty=1.2, min_tokens=60, stop_token_ids=(7,))
    tokens = plain_generate(model, list(PROMPT), one.sampling)[0]
    trees = Visiting({one.key: (*PROMPT, *tokens)}, 512, seed=1)
    with running_loop(partial(HostModel, model), CONFIG, trees) as runner:
        (answer,) = runner.run([one])
        order = journal(runner)
    assert answer.token_ids == tuple(tokens)
    assert answer.last.usage is not None
    assert answer.last.usage.accepted_tokens > 5
    assert "LL" in order
    assert "LRLRLR" in order


def test_stopping_leaves_nothing_on_the_device(model: CausalLM) -> None:
    runner = LoopRunner(partial(HostModel, model), CONFIG)
    runner.loop.start()
    runner.loop.submit(request(max_tokens=150))
    runner.wait_for(lambda: bool(runner.answers))
    runner.loop.stop()
    assert all(ticket is None for ticket, _ in runner.model._stream)
    assert runner.answers[RequestKey(0, 0)].last.error is not None
