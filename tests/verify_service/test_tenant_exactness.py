"""Tokens do not change with tenants, their weights, what others of them ask for, preemption or trees that are cut."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from slipstream.generation_types import FinishReason, SpeculationOptions
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from support.plain_reference import plain_generate
from support.verify_loop import OracleTrees, RandomTrees, ScriptedTrees, Target, running_loop
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest, RequestKey, SamplingParams

WEIGHTS = {"a": 1.0, "b": 3.0, "c": 0.25}


def some(seed: int, count: int) -> list[GenerationRequest]:
    """Requests of three tenants, most of one, prompts short and long; some insist on trees, some have none."""
    pick = random.Random(seed)
    found: list[GenerationRequest] = []
    for index in range(count):
        tenant = pick.choice("aaabc")
        prompt = tuple(pick.randrange(3, 512) for _ in range(pick.choice([2, 5, 20, 90])))
        sampling = SamplingParams(
            temperature=pick.choice([0.0, 0.8]), seed=index, max_tokens=pick.randint(4, 40), ignore_eos=True
        )
        speculation = pick.choice(
            [SpeculationOptions(), SpeculationOptions(enabled=True, max_nodes=64), SpeculationOptions(enabled=False)]
        )
        found.append(
            GenerationRequest(
                RequestKey(0, index),
                prompt,
                arrival=0.0,
                sampling=sampling,
                speculation=speculation,
                tenant=tenant,
                weight=WEIGHTS[tenant],
            )
        )
    return found


@pytest.mark.parametrize("seed", range(4))
def test_answers_are_those_of_each_request_alone(model: CausalLM, target: Target, seed: int) -> None:
    requests = some(seed, 16)
    alone = {one.key: tuple(plain_generate(model, list(one.prompt_token_ids), one.sampling)[0]) for one in requests}
    texts = {one.key: one.prompt_token_ids + alone[one.key] for one in requests}
    trees: ScriptedTrees = OracleTrees(texts, 512, seed) if seed % 2 else RandomTrees(512, seed)
    config = EngineConfig(num_pages=(20, 64)[seed // 2], page_size=8, max_running=(3, 16)[seed % 2], prefill_chunk=32)
    with running_loop(target, config, trees) as runner:
        answers = runner.run(requests)
        state = runner.loop.state()
    for request, answer in zip(requests, answers, strict=True):
        assert answer.finish_reason is FinishReason.LENGTH
        assert answer.token_ids == alone[request.key]
    assert state.tenants == 0


def test_trees_that_are_cut_yield_the_same_tokens(model: CausalLM) -> None:
    """Eight tenants insist on the largest trees beside a plain stream of another."""
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    eager = [
        GenerationRequest(
            RequestKey(0, i), (4, 5 + i), 0.0, sampling=params, speculation=SpeculationOptions(enabled=True),
            tenant=f"eager-{i}",
        )
        for i in range(8)
    ]  # fmt: skip
    plain = replace(eager[0], key=RequestKey(0, 99), speculation=SpeculationOptions(enabled=False), tenant="plain")
    requests = [*eager, plain]
    alone = {one.key: plain_generate(model, list(one.prompt_token_ids), params)[0] for one in requests}
    trees = RandomTrees(512, 1)
    config = EngineConfig(num_pages=128, page_size=16)
    with running_loop(model, config, trees) as runner:
        answers = runner.run(requests)
        assert runner.loop.state().cut_nodes > 0
        assert runner.loop.state().drafted_tokens > 0
    for request, answer in zip(requests, answers, strict=True):
        assert list(answer.token_ids) == alone[request.key]
    with running_loop(model, replace(config, fair=False), RandomTrees(512, 1)) as runner:
        runner.run(requests)
        assert runner.loop.state().cut_nodes == 0
