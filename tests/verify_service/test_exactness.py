"""Tokens and logprobs are a function of request and model alone: one reference, many ways to run.

The reference decodes one token a pass, without the loop, the scheduler, the cache or the sampling kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from slipstream.generation_types import PositionLogprobs, TokenLogprob
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.ops.logprobs import logprobs
from support.plain_reference import plain_generate
from support.request_mix import TOKENS, Expected, assert_equal, drafter, some_requests
from support.verify_loop import OracleTrees, Target, running_loop
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest, RequestKey, SamplingParams

PAGE_SIZES = (1, 16, 64)
PROPOSERS = ("none", "random", "oracle")


def expected_of(model: CausalLM, request: GenerationRequest) -> Expected:
    tokens, rows, reason = plain_generate(
        model, list(request.prompt_token_ids), request.sampling, choice=request.choice_index
    )
    top = request.sampling.logprobs or 0
    values, ranks, ids, top_values = logprobs(np.stack(rows), np.array(tokens, dtype=np.int32), top)
    entries = tuple(
        PositionLogprobs(
            TokenLogprob(token, float(values[i]), int(ranks[i])),
            tuple(TokenLogprob(int(ids[i, j]), float(top_values[i, j]), j + 1) for j in range(top)),
        )
        for i, token in enumerate(tokens)
    )
    return tuple(tokens), entries, reason


@pytest.fixture(scope="module", params=[0.0, 0.8], ids=["greedy", "seeded"])
def reference(request: pytest.FixtureRequest, model: CausalLM) -> tuple[list[GenerationRequest], list[Expected]]:
    requests = some_requests(request.param)
    return requests, [expected_of(model, one) for one in requests]


def ways(turn: int) -> Iterator[tuple[int, bool, bool, int]]:
    """Prefill chunk, whether with the cache, whether short of pages, concurrency: half of all, by turns.

    A half holds every two settings together; two turns that follow hold all.
    """
    for chunk, cached, short, concurrency in itertools.product((7, 512), (True, False), (True, False), (1, 8)):
        half = (chunk == 7) ^ cached ^ short ^ (concurrency == 1)
        if half == turn % 2 and not (short and concurrency == 1):
            yield chunk, cached, short, concurrency


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_every_way_to_run_gives_the_same(
    target: Target,
    reference: tuple[list[GenerationRequest], list[Expected]],
    proposer: str,
    page_size: int,
) -> None:
    requests, expected = reference
    longest = max(len(one.prompt_token_ids) + TOKENS for one in requests)
    least = -(-longest // page_size)
    preemptions = accepted = steps = committed = 0
    turn = PAGE_SIZES.index(page_size) + PROPOSERS.index(proposer) + isinstance(target, CausalLM)
    for chunk, cached, short, concurrency in ways(turn + (requests[0].sampling.temperature > 0)):
        trees = drafter(proposer, requests, expected)
        config = EngineConfig(
            num_pages=least + (1 if page_size == 64 else least // 4) if short else 6 * least,
            page_size=page_size,
            max_running=8,
            prefill_chunk=chunk,
            prefix_cache=cached,
            adaptive=False,
            max_nodes=16 if proposer == "random" and page_size != 16 else 64,
        )
        with running_loop(target, config, trees) as runner:
            assert_equal(runner.run(requests, concurrency), expected)
            state = runner.loop.state()
        if trees is not None:
            assert (trees.drafted, trees.accepted) == (state.drafted_tokens, state.accepted_tokens)
        preemptions += state.preemptions
        accepted += state.accepted_tokens
        steps += state.steps
        committed += state.committed_tokens
        assert (state.prefix_hit_tokens > 0) >= (cached and concurrency == 1 and page_size < 64)
    if proposer != "oracle":
        assert preemptions > 0
    assert (accepted > 0) == (proposer != "none")


def test_the_oracle_is_accepted_across_pages(
    target: Target, reference: tuple[list[GenerationRequest], list[Expected]]
) -> None:
    requests, expected = reference
    config = EngineConfig(num_pages=64, page_size=16, adaptive=False)
    with running_loop(target, config, drafter("oracle", requests, expected)) as runner:
        answers = runner.run(requests, 1)
    usages = [answer.last.usage for answer in answers if answer.last.usage is not None]
    assert sum(usage.completion_tokens for usage in usages) > 6 * sum(usage.verify_steps for usage in usages)
    assert max(output.step.accepted for answer in answers for output in answer.outputs if output.step) > 16


def test_a_path_of_63_nodes_is_accepted_whole(model: CausalLM, target: Target) -> None:
    params = SamplingParams(temperature=0.8, seed=4, max_tokens=100, ignore_eos=True)
    one = GenerationRequest(RequestKey(0, 0), (5, 6, 7), arrival=0.0, sampling=params)
    tokens, _, _ = plain_generate(model, [5, 6, 7], params)
    trees = OracleTrees({one.key: (5, 6, 7, *tokens)}, 512, seed=2)
    with running_loop(target, EngineConfig(num_pages=64, page_size=4, adaptive=False), trees) as runner:
        (answer,) = runner.run([one])
    assert answer.token_ids == tuple(tokens)
    assert max(output.step.accepted for output in answer.outputs if output.step) == 63


def test_adaptive_budgets_change_no_token(
    target: Target, reference: tuple[list[GenerationRequest], list[Expected]]
) -> None:
    requests, expected = reference
    trees = drafter("oracle", requests, expected)
    assert trees is not None
    with running_loop(target, EngineConfig(num_pages=64), trees) as runner:
        assert_equal(runner.run(requests), expected)
        state = runner.loop.state()
    assert (trees.drafted, trees.accepted) == (state.drafted_tokens, state.accepted_tokens)
    assert 0 < trees.accepted <= trees.drafted


def test_a_resumed_stream_goes_on_where_it_was(
    model: CausalLM, reference: tuple[list[GenerationRequest], list[Expected]]
) -> None:
    requests, expected = reference
    for cut in (1, 17):
        resumed = [
            replace(one, output_token_ids=tokens[:cut]) for one, (tokens, _, _) in zip(requests, expected, strict=True)
        ]
        with running_loop(
            model, EngineConfig(num_pages=64, adaptive=False), drafter("oracle", requests, expected)
        ) as runner:
            answers = runner.run(resumed)
        for answer, (tokens, entries, reason) in zip(answers, expected, strict=True):
            assert answer.token_ids == tokens[cut:]
            assert answer.logprobs == entries[cut:]
            assert answer.finish_reason is reason
            assert answer.last.usage is not None
            assert answer.last.usage.completion_tokens == len(tokens)
