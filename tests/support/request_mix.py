"""Requests of many kinds, what they must be answered, and drafters for them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from slipstream.generation_types import FinishReason, PositionLogprobs
from support.verify_loop import Answer, OracleTrees, RandomTrees, ScriptedTrees
from verify_service.core.request import GenerationRequest, RequestKey, SamplingParams

TOKENS = 40
Expected = tuple[tuple[int, ...], tuple[PositionLogprobs, ...], FinishReason]


def some_requests(temperature: float, tokens: int = TOKENS) -> list[GenerationRequest]:
    """Prompts that share prefixes, some with penalties, biases, filters and stops."""
    pick = random.Random(5)
    shared = [pick.randrange(512) for _ in range(70)]
    plain = SamplingParams(temperature=temperature, max_tokens=tokens, logprobs=2)
    edited = replace(
        plain,
        repetition_penalty=1.3,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        min_tokens=10,
        stop_token_ids=(5, 6, 7),
        logit_bias=((2, 1.0), (9, -3.0)),
    )
    filtered = replace(plain, top_k=50, top_p=0.9, min_p=0.02, ignore_eos=True)
    requests = []
    for index, params in enumerate((plain, edited, filtered, edited, plain, filtered)):
        prompt = shared[: (0, 20, 70)[index % 3]] + [pick.randrange(512) for _ in range(pick.randint(1, 50))]
        requests.append(
            GenerationRequest(
                RequestKey(0, index),
                tuple(prompt),
                arrival=0.0,
                sampling=replace(params, seed=100 + index),
                choice_index=index % 2,
            )
        )
    return requests


def assert_equal(answers: Sequence[Answer], expected: Sequence[Expected]) -> None:
    for answer, (tokens, entries, reason) in zip(answers, expected, strict=True):
        assert answer.last.error is None
        assert answer.token_ids == tokens
        assert answer.logprobs == entries
        assert answer.finish_reason is reason
        usage = answer.last.usage
        assert usage is not None
        assert usage.completion_tokens == len(tokens)


def drafter(name: str, requests: list[GenerationRequest], expected: list[Expected]) -> ScriptedTrees | None:
    if name == "random":
        return RandomTrees(512, seed=3)
    if name == "oracle":
        texts = {one.key: one.prompt_token_ids + tokens for one, (tokens, _, _) in zip(requests, expected, strict=True)}
        return OracleTrees(texts, 512, seed=3)
    return None
