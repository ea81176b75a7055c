"""Logprobs of a prompt's tokens are those of the model's own logits, bit for bit, however the prompt is computed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from slipstream.generation_types import FinishReason, PositionLogprobs
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.row_batch import RowBatch
from slipstream_kernels.ops.logprobs import logprobs
from support.host_model import HostModel
from support.verify_loop import Target, running_loop
from verify_service.core.engine_config import EngineConfig
from verify_service.core.prompt_scores import MOST_ENTRIES, PromptScores
from verify_service.core.request import GenerationRequest, RequestKey, SamplingParams
from verify_service.model_runner.logprobs import logprob_entries

Scores = tuple[PositionLogprobs, ...]

LONG = tuple((7 * at + at * at // 3) % 500 + 3 for at in range(150))
OTHER = tuple((11 * at + 5) % 500 + 3 for at in range(41))
SCORED = SamplingParams(temperature=0.0, max_tokens=3, seed=1, ignore_eos=True, prompt_logprobs=3, logprobs=1)
ONLY = replace(SCORED, max_tokens=0, prompt_logprobs=1)
PLAIN = replace(SCORED, prompt_logprobs=None, max_tokens=40)
WIDE = EngineConfig(num_pages=128, page_size=8, max_running=8, adaptive=False)
SETTINGS = {
    "one chunk": WIDE,
    "small chunks": replace(WIDE, prefill_chunk=7, prefix_cache=False),
    "single rows": replace(WIDE, prefill_chunk=1, page_size=1, num_pages=640),
    "large pages": replace(WIDE, page_size=64, num_pages=16, prefill_chunk=65),
}


def request(number: int, prompt: tuple[int, ...], sampling: SamplingParams) -> GenerationRequest:
    return GenerationRequest(RequestKey(0, number), prompt, arrival=0.0, sampling=sampling)


REQUESTS = [
    request(0, LONG, SCORED),
    request(1, OTHER, ONLY),
    request(2, LONG, PLAIN),
    request(3, LONG[:90], ONLY),
    request(4, LONG[:1], SCORED),
    request(5, LONG[:2], replace(ONLY, prompt_logprobs=0)),
    request(6, OTHER, PLAIN),
]


def one_by_one(model: CausalLM, prompt: tuple[int, ...], top: int) -> Scores:
    """One token a pass, without the loop, the scheduler or an engine."""
    cache = model.new_cache(num_pages=64, page_size=8, scratch_slots=1)
    passes = [RowBatch.chunk([token], at, range(64), 8) for at, token in enumerate(prompt[:-1])]
    rows = [np.array(model.forward(cache, batch)) for batch in passes]
    if not rows:
        return ()
    chosen = np.array(prompt[1:], dtype=np.int32)
    return logprob_entries(chosen, *logprobs(np.concatenate(rows), chosen, top))


@pytest.fixture(scope="module")
def expected(model: CausalLM) -> list[Scores]:
    tops = [each.sampling.prompt_logprobs for each in REQUESTS]
    return [
        () if top is None else one_by_one(model, each.prompt_token_ids, top)
        for each, top in zip(REQUESTS, tops, strict=True)
    ]


@pytest.fixture(scope="module")
def tokens(model: CausalLM) -> list[tuple[int, ...]]:
    """What each request generates where nobody asks for logprobs of prompts."""
    plain = [replace(each, sampling=replace(each.sampling, prompt_logprobs=None, max_tokens=40)) for each in REQUESTS]
    with running_loop(model, WIDE) as runner:
        answers = runner.run(plain, 1)
    return [answer.token_ids[: each.sampling.max_tokens] for answer, each in zip(answers, REQUESTS, strict=True)]


@pytest.mark.parametrize("settings", SETTINGS)
def test_they_do_not_depend_on_the_way_to_run(
    target: Target, expected: list[Scores], tokens: list[tuple[int, ...]], settings: str
) -> None:
    with running_loop(target, SETTINGS[settings]) as runner:
        for session, concurrency in enumerate((1, len(REQUESTS))):  # the second time the cache has all prompts
            requests = [replace(each, key=RequestKey(session, each.key.request_id)) for each in REQUESTS]
            answers = runner.run(requests, concurrency)
            assert [answer.prompt_scores for answer in answers] == expected
            assert [answer.token_ids for answer in answers] == tokens
            assert {answer.finish_reason for answer in answers} == {FinishReason.LENGTH}


def test_who_asks_reads_nothing_from_the_cache_but_fills_it(model: CausalLM, expected: list[Scores]) -> None:
    with running_loop(model, WIDE) as runner:
        cached = []
        for number, sampling in enumerate((ONLY, ONLY, PLAIN)):
            (answer,) = runner.run([request(number, LONG[:90], sampling)])
            assert answer.last.usage is not None
            cached.append((answer.last.usage.cached_tokens, answer.last.usage.completion_tokens))
            assert answer.prompt_scores == (expected[3] if sampling is ONLY else ())
    assert cached == [(0, 0), (0, 0), (88, 40)]


def test_preemption_repeats_none(target: Target, expected: list[Scores]) -> None:
    """The scored request comes last, so that it makes way, and finds in the cache what it has told already."""
    config = replace(WIDE, num_pages=145, prefill_chunk=4, page_size=1)
    with running_loop(target, config) as runner:
        plain, scored = runner.run([request(0, OTHER, replace(PLAIN, max_tokens=60)), request(1, LONG[:90], ONLY)])
        state = runner.loop.state()
    assert scored.prompt_scores == expected[3]
    assert len(plain.token_ids) == 60
    assert state.preemptions > 0
    assert state.prefix_hit_tokens > 0


def test_the_twins_of_a_gpu_give_the_same_in_every_way(twins: Target, model: CausalLM, expected: list[Scores]) -> None:
    """Slices of the head, chunks and batches change no bit; against the CPU's arithmetic they are close."""
    requests = [
        request(0, LONG[:60], SCORED),
        request(1, OTHER, ONLY),
        request(2, LONG[:60], replace(PLAIN, max_tokens=3)),
    ]
    config = EngineConfig(num_pages=128, max_running=8, prefill_chunk=128, step_nodes=64, max_nodes=32, adaptive=False)
    seen = []
    for settings in (config, replace(config, prefill_chunk=7, page_size=1, num_pages=640)):
        with running_loop(twins, settings) as runner:
            seen.append([answer.prompt_scores for answer in runner.run(requests)])
            again = [replace(each, key=RequestKey(1, each.key.request_id)) for each in requests]
            seen.append([answer.prompt_scores for answer in runner.run(again, 1)])
    assert seen[1:] == seen[:1] * 3
    assert seen[0][2] == ()
    for mine, theirs in zip(seen[0], (expected[0][:59], expected[1]), strict=False):
        assert [entry.chosen.token_id for entry in mine] == [entry.chosen.token_id for entry in theirs]
        np.testing.assert_allclose(
            [entry.chosen.logprob for entry in mine], [entry.chosen.logprob for entry in theirs], atol=0.05
        )


def test_logits_of_few_rows_are_there_at_a_time(model: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    inner = CausalLM.last_logits

    def counted(self: CausalLM, rows: np.ndarray) -> np.ndarray:
        asked.append(len(rows))
        return inner(self, rows)

    monkeypatch.setattr(CausalLM, "last_logits", counted)
    with running_loop(model, WIDE) as runner:
        runner.run([request(0, LONG, ONLY)])
    assert asked == [128, 21]


def test_outputs_are_small() -> None:
    count, top = 300, 20
    scores = PromptScores(
        5,
        np.arange(count, dtype=np.float32),
        np.arange(count, dtype=np.int32),
        np.zeros((count, top), np.int32),
        np.zeros((count, top), np.float32),
    )
    pieces = list(scores.pieces())
    assert [piece.first for piece in pieces] == [5 + at for at in range(0, count, MOST_ENTRIES // 21)]
    assert np.concatenate([piece.logprobs for piece in pieces]).tolist() == list(range(count))
    assert max(piece.top_ids.size + piece.logprobs.size for piece in pieces) <= MOST_ENTRIES


def test_rows_that_the_last_pass_did_not_have_are_refused(model: CausalLM) -> None:
    cache = model.new_cache(num_pages=1, page_size=8, scratch_slots=1)
    batch = RowBatch.chunk([5, 6, 7], 0, [0], 8)
    logits = np.array(model.forward(cache, batch))
    rows = np.array([2, 0], dtype=np.int32)
    np.testing.assert_array_equal(model.last_logits(rows), logits[rows])
    with pytest.raises(ValueError, match="had 3 rows"):
        model.last_logits(np.array([3], dtype=np.int32))


def test_a_step_that_fails_to_tell_them_ends_the_request_alone(
    model: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: HostModel, ticket: object) -> None:
        raise RuntimeError("no logprobs today")

    monkeypatch.setattr(HostModel, "scores", failing)
    with running_loop(partial(HostModel, model), WIDE) as runner:
        scored, plain = runner.run([request(0, OTHER, ONLY), request(1, LONG, PLAIN)])
    assert (scored.finish_reason, plain.finish_reason) == (FinishReason.ERROR, FinishReason.LENGTH)
    assert len(plain.token_ids) == 40
