"""Requests that are held to grammars, for loops over the tiny model, and what plain constrained decoding answers."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

from slipstream.generation_types import FinishReason
from slipstream.grammar.grammar import Grammar
from slipstream.grammar.tokenizer import GrammarTokenizer
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from support.plain_grammar import PlainGrammar
from support.plain_reference import plain_generate
from support.verify_loop import Answer, ScriptedTrees, Target, running_loop
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest, RequestKey, SamplingParams
from verify_service.engine.loop_stats import LoopState
from verify_service.grammar.compiler import GrammarCompiler

TOKENS = 40
CONFIG = EngineConfig(num_pages=256, page_size=8, max_running=8, adaptive=False)
Plain = tuple[tuple[int, ...], FinishReason]
GREEDY = SamplingParams(temperature=0.0, max_tokens=TOKENS)
PARAMS = {
    "greedy": GREEDY,
    "seeded": replace(GREEDY, temperature=1.0),
    "top_p": replace(GREEDY, temperature=1.0, top_p=0.9),
    "penalties": replace(GREEDY, temperature=0.8, repetition_penalty=1.3, frequency_penalty=0.3, top_k=40),
    "edited": replace(GREEDY, logit_bias=((20, 3.0), (70, 5.0)), min_tokens=12, stop_token_ids=(3, 60)),
    "until stopped": replace(GREEDY, temperature=0.7, min_p=0.05, ignore_eos=True),
}


def requests_of(params: SamplingParams, grammars: list[Grammar], tokens: int = TOKENS) -> list[GenerationRequest]:
    pick = random.Random(3)
    return [
        GenerationRequest(
            RequestKey(0, index),
            tuple(pick.randrange(6, 512) for _ in range(pick.randint(1, 30))),
            arrival=0.0,
            sampling=replace(params, seed=50 + index, grammar=grammar, max_tokens=tokens),
            choice_index=index % 2,
        )
        for index, grammar in enumerate(grammars)
    ]


def plain(model: CausalLM, tokenizer: GrammarTokenizer, request: GenerationRequest) -> Plain:
    legal = PlainGrammar(request.sampling, tokenizer).legal
    tokens, _, reason = plain_generate(
        model, list(request.prompt_token_ids), request.sampling, choice=request.choice_index, legal=legal
    )
    return tuple(tokens), reason


def as_grammar(schema: Any) -> Grammar:
    return Grammar(json_schema=json.dumps(schema), coerce_one_of=True)


def run(
    model: Target,
    compiler: GrammarCompiler,
    requests: list[GenerationRequest],
    config: EngineConfig = CONFIG,
    trees: ScriptedTrees | None = None,
    concurrency: int = 0,
) -> tuple[list[Answer], LoopState]:
    with running_loop(model, config, trees, grammars=compiler) as runner:
        answers = runner.run(requests, concurrency)
        return answers, runner.loop.state()
