"""Budgets drawn at random for each step and request leave tokens alone: what the controller decides changes no bit."""

from __future__ import annotations

import pytest

from benchmarks.local_engine.random_budgets import random_budgets
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from support.request_mix import some_requests
from support.verify_loop import OracleTrees, running_loop
from verify_service.core.engine_config import EngineConfig

LOOP = EngineConfig(num_pages=256, page_size=4, max_running=6, prefill_chunk=24, step_nodes=96)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 40))])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_tokens_are_plain_decodings(model: CausalLM, temperature: float, seed: int) -> None:
    asked = some_requests(temperature)
    with running_loop(model, LOOP) as runner:
        plain = [(answer.token_ids, answer.finish_reason) for answer in runner.run(asked)]
    texts = {one.key: (*one.prompt_token_ids, *tokens) for one, (tokens, _) in zip(asked, plain, strict=True)}
    trees = OracleTrees(texts, model.config.vocab_size, seed)
    with random_budgets(seed) as budgets, running_loop(model, LOOP, trees) as runner:
        answers = runner.run(asked)
    assert [(answer.token_ids, answer.finish_reason) for answer in answers] == plain
    usages = [answer.last.usage for answer in answers]
    assert sum(usage.accepted_tokens for usage in usages if usage is not None) > 20
    assert len(budgets.drawn) > 20
