"""The life of requests in a running loop: ends, refusals, cancelling, draining, failing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from slipstream.generation_types import FinishReason, SpeculationOptions
from slipstream.rpc.errors import InternalError, InvalidArgumentError, ResourceExhaustedError, UnavailableError
from slipstream_kernels.models.capture_layers import Capture
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.paged_kv import PagedKV
from slipstream_kernels.models.cpu.row_batch import RowBatch
from slipstream_kernels.token_tree import TokenTree
from support.plain_reference import plain_generate
from support.verify_loop import PROPOSER, LoopRunner, OracleTrees, RandomTrees, ScriptedTrees, Target, running_loop
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest, RequestKey, SamplingParams
from verify_service.engine.sink import Sink

CONFIG = EngineConfig(num_pages=128, adaptive=False)
PROMPT = tuple(range(40, 75))
EOS = 2
GREEDY = SamplingParams(temperature=0.0, max_tokens=30, seed=1)
ENDLESS = SamplingParams(temperature=0.8, seed=1, ignore_eos=True)


def request(request_id: int = 0, session: int = 0, sampling: SamplingParams = GREEDY) -> GenerationRequest:
    return GenerationRequest(RequestKey(session, request_id), PROMPT, arrival=0.0, sampling=sampling)


def oracle(text: Sequence[int], request_id: int = 0) -> OracleTrees:
    return OracleTrees({RequestKey(0, request_id): (*PROMPT, *text)}, 512, seed=1)


@pytest.fixture(scope="module")
def text(model: CausalLM) -> list[int]:
    """The greedy output of PROMPT, end-of-sequence tokens ignored."""
    return plain_generate(model, list(PROMPT), replace(GREEDY, max_tokens=60, ignore_eos=True))[0]


def test_length_is_the_reason_at_max_tokens(target: Target, text: list[int]) -> None:
    for limit in (1, 2, 30):
        params = replace(GREEDY, max_tokens=limit, ignore_eos=True)
        with running_loop(target, CONFIG, oracle(text)) as runner:
            (answer,) = runner.run([request(sampling=params)])
        assert answer.token_ids == tuple(text[:limit])
        assert answer.finish_reason is FinishReason.LENGTH


def test_length_is_the_reason_at_the_end_of_the_context(model: CausalLM, target: Target) -> None:
    prompt = tuple(i % 512 for i in range(480))
    params = replace(GREEDY, max_tokens=None, ignore_eos=True)
    one = replace(request(sampling=params), prompt_token_ids=prompt)
    expected = plain_generate(model, list(prompt), params)[0]
    trees = OracleTrees({one.key: (*prompt, *expected, *range(60))}, 512, seed=1)
    with running_loop(target, CONFIG, trees) as runner:
        (answer,) = runner.run([one])
    assert len(answer.token_ids) == 32
    assert answer.token_ids == tuple(expected)
    assert answer.finish_reason is FinishReason.LENGTH


def test_a_stop_token_ends_the_output_though_the_step_accepted_more(target: Target, text: list[int]) -> None:
    stop = text[12]
    at = text.index(stop) + 1
    params = replace(GREEDY, max_tokens=60, ignore_eos=True, stop_token_ids=(stop,))
    with running_loop(target, CONFIG, oracle(text)) as runner:
        (answer,) = runner.run([request(sampling=params)])
    assert answer.token_ids == tuple(text[:at])
    assert answer.finish_reason is FinishReason.STOP
    usage = answer.last.usage
    assert usage is not None
    assert usage.completion_tokens == at
    steps = [output.step for output in answer.outputs if output.step]
    assert usage.accepted_tokens == sum(step.accepted for step in steps) <= at - 1
    assert usage.drafted_tokens == sum(step.drafted for step in steps)
    assert usage.verify_steps == len(answer.outputs)


def test_end_of_sequence_stops_unless_ignored_and_waits_for_min_tokens(target: Target) -> None:
    wish = replace(GREEDY, logit_bias=((EOS, 100.0),), max_tokens=9)
    cases = {
        wish: ((EOS,), FinishReason.STOP),
        replace(wish, ignore_eos=True): ((EOS,) * 9, FinishReason.LENGTH),
    }
    with running_loop(target, CONFIG, RandomTrees(512)) as runner:
        for index, (params, (tokens, reason)) in enumerate(cases.items()):
            (answer,) = runner.run([request(index, sampling=params)])
            assert (answer.token_ids, answer.finish_reason) == (tokens, reason)
        (answer,) = runner.run([request(9, sampling=replace(wish, min_tokens=5))])
    assert len(answer.token_ids) == 6
    assert EOS not in answer.token_ids[:5]
    assert answer.token_ids[5] == EOS


def test_the_seed_is_told_once_and_reproduces(target: Target) -> None:
    free = replace(GREEDY, temperature=1.0, seed=None, max_tokens=8)
    with running_loop(target, CONFIG) as runner:
        (answer,) = runner.run([request(0, sampling=free)])
        seed = answer.outputs[0].seed
        assert seed is not None
        assert all(output.seed is None for output in answer.outputs[1:])
        (again,) = runner.run([request(1, sampling=replace(free, seed=seed))])
        assert again.token_ids == answer.token_ids
        other = replace(request(2, sampling=replace(free, seed=seed)), choice_index=1)
        assert runner.run([other])[0].token_ids != answer.token_ids


def test_timings_come_last_and_usage_first_and_last(target: Target) -> None:
    with running_loop(target, CONFIG) as runner:
        runner.run([request(0)])
        (answer,) = runner.run([request(1)])
    assert all(output.timings is None for output in answer.outputs[:-1])
    assert answer.outputs[0].usage is not None
    assert all(output.usage is None for output in answer.outputs[1:-1])
    timings, usage = answer.last.timings, answer.last.usage
    assert timings is not None
    assert 0 <= timings.queued <= timings.first_token <= timings.total
    assert usage is not None
    assert (usage.prompt_tokens, usage.cached_tokens) == (len(PROMPT), 32)


def test_refusals_come_as_outputs(target: Target) -> None:
    with running_loop(target, CONFIG) as runner:
        (answer,) = runner.run([request(sampling=replace(GREEDY, top_p=2.0))])
        assert isinstance(answer.last.error, InvalidArgumentError)
        assert answer.last.error.field == "top_p"
        assert answer.finish_reason is FinishReason.ERROR
        (answer,) = runner.run([request(1)])
        assert answer.last.error is None


def test_a_resumed_request_that_is_over_is_answered_at_once(target: Target) -> None:
    with running_loop(target, CONFIG) as runner:
        (answer,) = runner.run([replace(request(), output_token_ids=(7, EOS))])
        assert answer.finish_reason is FinishReason.STOP
        assert answer.token_ids == ()
        assert answer.last.usage is not None
        assert answer.last.usage.completion_tokens == 2
        assert runner.loop.state().steps == 0


class PausedTrees(ScriptedTrees):
    """Holds the loop up at its first decode step until told to go on; makes no trees."""

    def __init__(self) -> None:
        super().__init__()
        self._reached = threading.Event()
        self._go = threading.Event()

    def collect(self, wanted: Sequence[RequestKey]) -> list[TokenTree | None]:
        self._reached.set()
        assert self._go.wait(60.0)
        return [None] * len(wanted)

    @contextmanager
    def pause(self, runner: LoopRunner, one: GenerationRequest) -> Iterator[None]:
        """Submit `one`; within the block the loop stands in its first decode step."""
        runner.loop.submit(one)
        assert self._reached.wait(60.0)
        try:
            yield
        finally:
            self._go.set()


def test_a_token_is_told_before_the_wait_for_the_next_tree(target: Target) -> None:
    trees, one = PausedTrees(), request(sampling=replace(ENDLESS, max_tokens=9))
    with running_loop(target, CONFIG, trees) as runner, trees.pause(runner, one):
        runner.wait_for(lambda: one.key in runner.answers)
        assert len(runner.answers[one.key].token_ids) == 1


def test_a_key_in_use_is_refused(target: Target) -> None:
    trees, one = PausedTrees(), request(sampling=ENDLESS)
    with running_loop(target, CONFIG, trees) as runner:
        with trees.pause(runner, one):
            runner.loop.submit(one)
            runner.loop.cancel(one.key)
        assert runner.loop.wait_idle(60.0)
        (error,) = [output.error for output in runner.answers[one.key].outputs if output.error]
        assert isinstance(error, InvalidArgumentError)
        assert error.field == "request_id"
        assert runner.answers[one.key].finish_reason is FinishReason.CANCELLED


def test_the_queue_has_an_end(target: Target) -> None:
    trees = PausedTrees()
    with running_loop(target, replace(CONFIG, max_running=1, max_queued=1), trees) as runner:
        with trees.pause(runner, request(0)):
            runner.loop.submit(request(1))
            runner.loop.submit(request(2))
        runner.wait_for(lambda: all(runner.finished(RequestKey(0, i)) for i in range(3)))
        error = runner.answers[RequestKey(0, 2)].last.error
        assert isinstance(error, ResourceExhaustedError)
        assert "1 requests run and 1 wait" in error.message
        assert runner.answers[RequestKey(0, 1)].last.error is None


def test_cancelling_frees_pages(target: Target) -> None:
    config = replace(CONFIG, prefix_cache=False, max_running=1)
    trees = PausedTrees()
    keys = [RequestKey(0, request_id) for request_id in range(2)]
    with running_loop(target, config, trees) as runner:
        with trees.pause(runner, request(0, sampling=ENDLESS)):
            runner.loop.submit(request(1, sampling=ENDLESS))
            for key in reversed(keys):
                runner.loop.cancel(key)
        runner.wait_for(lambda: all(runner.finished(key) for key in keys))
        for key in keys:
            assert runner.answers[key].finish_reason is FinishReason.CANCELLED
        assert runner.loop.wait_idle(60.0)
        state = runner.loop.state()
        assert state.pages_free == config.num_pages
        assert state.steps == 2
        runner.loop.cancel(RequestKey(5, 5))


def test_a_session_is_cancelled_as_a_whole(target: Target) -> None:
    trees = PausedTrees()
    with running_loop(target, CONFIG, trees) as runner:
        with trees.pause(runner, request(0, 1, ENDLESS)):
            runner.loop.submit(request(1, 1, ENDLESS))
            runner.loop.submit(request(0, 2))
            runner.loop.submit(request(1, 2))
            runner.loop.cancel_session(1)
        runner.wait_for(lambda: all(runner.finished(RequestKey(s, i)) for s in (1, 2) for i in range(2)))
        for request_id in range(2):
            assert runner.answers[RequestKey(1, request_id)].finish_reason is FinishReason.CANCELLED
            assert runner.answers[RequestKey(2, request_id)].finish_reason is not FinishReason.CANCELLED


def test_draining_finishes_what_runs_and_queues(target: Target) -> None:
    config = replace(CONFIG, max_running=1)
    with running_loop(target, config) as runner:
        for request_id in range(2):
            runner.loop.submit(request(request_id))
        runner.loop.drain()
        runner.loop.submit(request(2))
        assert runner.loop.wait_idle(60.0)
        assert runner.loop.state().draining
        for request_id in range(2):
            assert runner.answers[RequestKey(0, request_id)].last.error is None
        assert isinstance(runner.answers[RequestKey(0, 2)].last.error, UnavailableError)


def test_stopping_answers_everyone(target: Target) -> None:
    trees = PausedTrees()
    runner = LoopRunner(target, CONFIG, trees)
    runner.loop.start()
    stopper = threading.Thread(target=runner.loop.stop)
    with trees.pause(runner, request(sampling=ENDLESS)):
        stopper.start()
    stopper.join(30.0)
    assert isinstance(runner.answers[RequestKey(0, 0)].last.error, UnavailableError)


class BrittleModel(CausalLM):
    """A model whose pass fails when it meets a certain token."""

    __slots__ = ("poison",)

    def forward(self, cache: PagedKV, rows: RowBatch, capture: Capture | None = None) -> NDArray[np.float32]:
        if self.poison in rows.token_ids.tolist():
            raise RuntimeError("this pass fails")
        return super().forward(cache, rows, capture)


def test_a_failing_step_ends_its_requests_and_leaks_nothing(
    model: CausalLM, text: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    brittle = BrittleModel(model.config, model._backend)
    brittle.poison = 511
    trees = PausedTrees()
    with caplog.at_level(logging.CRITICAL), running_loop(brittle, CONFIG, trees) as runner:
        with trees.pause(runner, request(0, sampling=replace(ENDLESS, logit_bias=((511, -100.0),)))):
            runner.loop.submit(replace(request(1), prompt_token_ids=(*PROMPT, 511)))
        runner.wait_for(lambda: all(runner.finished(RequestKey(0, i)) for i in range(2)))
        for request_id in range(2):
            assert isinstance(runner.answers[RequestKey(0, request_id)].last.error, InternalError)
        (answer,) = runner.run([request(2, sampling=replace(GREEDY, ignore_eos=True))])
        assert answer.token_ids == tuple(text[:30])
    assert [key.request_id for key, _ in trees.ended] == [0, 1, 2]


class BrokenTrees(ScriptedTrees):
    """A source whose every method raises."""

    def begin(self, opening: object) -> bool:
        raise RuntimeError("begin")

    def collect(self, wanted: object) -> list[TokenTree | None]:
        raise RuntimeError("collect")


class LateBrokenTrees(ScriptedTrees):
    """A source that fails at every step once a request has begun."""

    def commit(self, commits: object) -> None:
        raise RuntimeError("commit")

    def collect(self, wanted: object) -> list[TokenTree | None]:
        raise RuntimeError("collect")

    def end(self, key: object, reason: object, verified: object = ()) -> None:
        raise RuntimeError("end")


@pytest.mark.parametrize("trees", [BrokenTrees(), LateBrokenTrees()], ids=["at once", "later"])
def test_a_tree_source_that_raises_costs_no_token(
    target: Target, text: list[int], trees: ScriptedTrees, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL), running_loop(target, CONFIG, trees) as runner:
        (answer,) = runner.run([request(sampling=replace(GREEDY, ignore_eos=True))])
    assert answer.token_ids == tuple(text[:30])


def test_a_sink_that_raises_does_not_stop_the_loop(target: Target, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL), running_loop(target, CONFIG) as runner:
        take, calls = runner.loop._sink.outputs, []

        def sink(outputs: list) -> None:  # type: ignore[type-arg]  # whatever comes
            calls.append(outputs)
            if len(calls) == 1:
                raise RuntimeError("full")
            take(outputs)

        runner.loop._sink = Sink(sink)
        (answer,) = runner.run([request()])
    assert answer.finish_reason is not None


def test_speculation_may_be_declined_or_narrowed(target: Target, text: list[int]) -> None:
    params = replace(GREEDY, ignore_eos=True)
    trees = oracle(text)
    with running_loop(target, CONFIG, trees) as runner:
        (plain,) = runner.run([replace(request(sampling=params), speculation=SpeculationOptions(enabled=False))])
        assert trees.openings == []
        assert all(output.step is not None and output.step.proposer == "" for output in plain.outputs)
        narrow = SpeculationOptions(proposer=PROPOSER, max_nodes=3, max_depth=1)
        (answer,) = runner.run([replace(request(sampling=params), speculation=narrow)])
    assert answer.token_ids == plain.token_ids
    steps = [output.step for output in answer.outputs if output.step is not None]
    assert max(step.drafted for step in steps) <= 2
    assert max(step.accepted for step in steps) == 1
    assert {step.proposer for step in steps} == {"", PROPOSER}


def test_drafters_hear_of_beginnings_and_ends(target: Target) -> None:
    trees = RandomTrees(512)
    one = replace(request(sampling=replace(GREEDY, seed=None)), tenant="t", choice_index=3, output_token_ids=(9,))
    with running_loop(target, CONFIG, trees) as runner:
        (answer,) = runner.run([one])
    (opening,) = trees.openings
    assert (opening.key, opening.proposer, opening.tenant, opening.choice_index) == (one.key, PROPOSER, "t", 3)
    assert opening.token_ids == (*PROMPT, 9)
    assert opening.prompt_length == len(PROMPT)
    assert opening.sampling.seed == answer.outputs[0].seed
    assert trees.ended == [(one.key, answer.finish_reason)]


def test_an_idle_loop_sleeps(target: Target) -> None:
    with running_loop(target, CONFIG) as runner:
        runner.run([request()])
        assert runner.loop.wait_idle(60.0)
        steps, commands = runner.loop.state().steps, threading.active_count()
        assert not threading.Event().wait(0.05)
        assert runner.loop.state().steps == steps
        assert threading.active_count() == commands
